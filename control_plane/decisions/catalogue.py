"""Decisions about the entries of the catalogue: publish a version, retire an entry, and use entries for an allocation.

SKUs, images and app profiles behave the same. A version never changes, a retired entry is offered again by a further
version, and no decision of this module concerns an existing allocation.
"""

from collections.abc import Mapping
from typing import Final, assert_never

from control_plane.decisions.refusals import Objection
from events.allocations import AllocationRequested, AllocationSpecified
from events.entries import (
    AppProfileContent,
    AppProfilePublished,
    AppProfileRetired,
    Entry,
    EntryContent,
    EntryPublished,
    EntryRetired,
    ImageContent,
    ImagePublished,
    ImageRetired,
    SkuContent,
    SkuPublished,
    SkuRetired,
    SpecifiedAppProfile,
    SpecifiedImage,
    SpecifiedSku,
)
from events.values import AppProfileName, EntryKind, ImageName, NetworkMode, SkuName

WORDS: Final[Mapping[EntryKind, str]] = {"sku": "SKU", "image": "image", "app_profile": "app profile"}
"""Name of each kind of entry in messages."""
_UNKNOWN: Final = {"sku": "unknown_sku", "image": "unknown_image", "app_profile": "unknown_app_profile"}
_EXISTS: Final = {"sku": "sku_exists", "image": "image_exists", "app_profile": "app_profile_exists"}
_RETIRED: Final = {"sku": "sku_retired", "image": "image_retired", "app_profile": "app_profile_retired"}


def published(name: str, version: int, content: EntryContent) -> EntryPublished:
    """Return the fact that publishes a version of an entry."""
    match content:
        case SkuContent():
            return SkuPublished(SkuName(name), version, content)
        case ImageContent():
            return ImagePublished(ImageName(name), version, content)
        case AppProfileContent():
            return AppProfilePublished(AppProfileName(name), version, content)
        case _:
            assert_never(content)


def publish_again(entry: Entry, content: EntryContent) -> tuple[EntryPublished, ...]:
    """Publish a further version of an entry, which offers a retired entry again. Nothing is published if the entry is
    offered and its newest version has this content already.
    """
    if entry.retired is None and entry.content == content:
        return ()
    return (published(entry.name, entry.version + 1, content),)


def retire(entry: Entry, reason: str) -> tuple[EntryRetired, ...]:
    """Retire an entry. Retiring it again changes nothing."""
    if entry.retired is not None:
        return ()
    match entry.kind:
        case "sku":
            return (SkuRetired(SkuName(entry.name), reason),)
        case "image":
            return (ImageRetired(ImageName(entry.name), reason),)
        case "app_profile":
            return (AppProfileRetired(AppProfileName(entry.name), reason),)
        case _:
            assert_never(entry.kind)


def unknown_entry(kind: EntryKind, name: str, field: str | None = None) -> Objection:
    """Return the objection to a name of the request for which the catalogue has no entry."""
    return Objection(_UNKNOWN[kind], f"no {WORDS[kind]} is named {name!r}", field)


def retired_entry(kind: EntryKind, name: str, reason: str, field: str | None) -> Objection:
    """Return the objection to a name of the request if its entry is retired for this reason."""
    message = f"the {WORDS[kind]} {name} is retired ({reason}); choose another one"
    return Objection(_RETIRED[kind], message, field)


def entry_exists(kind: EntryKind, name: str) -> Objection:
    """Return the objection to creating an entry that exists."""
    reason = f"the {WORDS[kind]} {name} exists already; publish a further version of it"
    return Objection(_EXISTS[kind], reason, "/name")


def _against_using(kind: EntryKind, name: str, entry: Entry | None) -> list[Objection]:
    """Return the reason why a new allocation cannot use an entry: it does not exist, or it is retired."""
    field = f"/{kind}"
    if entry is None:
        return [unknown_entry(kind, name, field)]
    if entry.retired is not None:
        return [retired_entry(kind, name, entry.retired, field)]
    return []


def _against_mode(mode: NetworkMode, sku: SpecifiedSku) -> list[Objection]:
    allowed = sku.content.network_modes
    if mode in allowed:
        return []
    reason = f"the SKU {sku.name} does not allow network mode {mode}; choose one of {', '.join(allowed)}"
    return [Objection("network_mode_not_allowed", reason, "/network_mode")]


def _against_disk(sku: SpecifiedSku, image: SpecifiedImage) -> list[Objection]:
    needed, size = least_disk_gib(image.content), sku.content.disk_gib
    if needed <= size:
        return []
    reason = (
        f"the image {image.name} needs a root disk of {needed} GiB, but that of the SKU {sku.name} has {size} GiB;"
        " choose a SKU with a larger root disk"
    )
    return [Objection("image_too_large", reason, "/image")]


def least_disk_gib(image: ImageContent) -> int:
    """Return the size in GiB of the smallest root disk that an image fits on, as far as its entry shows: the disk in an
    image of the format qcow2 may be larger than the file.
    """
    if image.format == "kernel":
        return image.minimum_disk_gib
    of_file = -(-image.size_bytes // 2**30) if image.format == "raw" else 1
    return max(of_file, image.minimum_disk_gib, 1)


def _against_fabric(sku: SpecifiedSku, profile: SpecifiedAppProfile) -> list[Objection]:
    accepted, fabric = profile.content.fabrics, sku.content.fabric
    if fabric in accepted:
        return []
    reason = (
        f"the SKU {sku.name} has the fabric {fabric!r}, which the app profile {profile.name} does not accept; choose"
        f" a SKU with one of the fabrics {', '.join(accepted)}"
    )
    return [Objection("no_common_fabric", reason, "/app_profile")]


def specified_sku(entry: Entry | None) -> SpecifiedSku | None:
    """Return what an allocation records of its SKU; None if `entry` is None."""
    if entry is None:
        return None
    assert isinstance(entry.content, SkuContent), "an entry of the kind sku must have the content of a SKU"
    return SpecifiedSku(SkuName(entry.name), entry.version, entry.content)


def specified_image(entry: Entry | None) -> SpecifiedImage | None:
    """Return what an allocation records of its image; None if `entry` is None."""
    if entry is None:
        return None
    assert isinstance(entry.content, ImageContent), (
        "an entry of the kind image must have the content of an image"
    )
    return SpecifiedImage(ImageName(entry.name), entry.version, entry.content)


def specified_app_profile(entry: Entry | None) -> SpecifiedAppProfile | None:
    """Return what an allocation records of its app profile; None if `entry` is None."""
    if entry is None:
        return None
    assert isinstance(entry.content, AppProfileContent), (
        "an entry of the kind app_profile must have the content of an app profile"
    )
    return SpecifiedAppProfile(AppProfileName(entry.name), entry.version, entry.content)


def against_entries(
    names: Mapping[EntryKind, str], mode: NetworkMode | None, found: Mapping[EntryKind, Entry]
) -> list[Objection]:
    """Return every reason why a new allocation cannot use the named entries together.

    `found` contains those of the named entries that exist. `mode` is the network mode of the request, None if it is not
    valid.
    """
    sku, image = specified_sku(found.get("sku")), specified_image(found.get("image"))
    profile = specified_app_profile(found.get("app_profile"))
    return [
        *(each for kind, name in names.items() for each in _against_using(kind, name, found.get(kind))),
        *(_against_mode(mode, sku) if mode and sku else ()),
        *(_against_disk(sku, image) if sku and image else ()),
        *(_against_fabric(sku, profile) if sku and profile else ()),
    ]


def specify(
    request: AllocationRequested, app_profile: AppProfileName | None, found: Mapping[EntryKind, Entry]
) -> AllocationSpecified | list[Objection]:
    """Return the fact that records the entries of an allocation with their content, or every objection to them.

    `found` contains those of the named entries that exist.
    """
    names: dict[EntryKind, str] = {"sku": request.sku, "image": request.image}
    if app_profile is not None:
        names["app_profile"] = app_profile
    sku, image = specified_sku(found.get("sku")), specified_image(found.get("image"))
    against = against_entries(names, request.network_mode, found)
    if against or sku is None or image is None:
        return against
    return AllocationSpecified(
        request.allocation_id, sku, image, specified_app_profile(found.get("app_profile"))
    )
