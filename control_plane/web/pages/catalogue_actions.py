"""Actions that publish and retire SKUs and images. The two kinds of entries of the catalogue have the same actions.

A version is published with its whole content. The form of a further version therefore has every field of the content,
and begins with the values of the newest version.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from markupsafe import Markup

from control_plane.web.actions import (
    REASON,
    Action,
    Call,
    Field,
    Names,
    Resource,
    View,
    Words,
    list_of,
    scaled,
    whole,
    with_reason,
    without_repeated,
    words,
)
from control_plane.web.rendering import LIMIT_UNITS, in_path, in_unit, mib
from control_plane.web.visits import Form, Visit

Content = dict[str, Any]
"""Content of a version, in the form of the API."""
Facts = Mapping[str, str | Markup]
_NONE: Final = "none"
_SECONDS: Final = "_seconds"
_GIB: Final = 2**30


class Kind(NamedTuple):
    """A kind of entries of the catalogue."""

    name: str
    """Path parameter with the name of an entry, and the beginning of the names of the streams of entries."""
    word: str
    path: str
    """Segment of the path in the API and the console, and command group of the command line."""
    example: str
    fields: tuple[Field, ...]
    """Fields of the form for the content of a version, each with the default of the API as its value."""
    content: Callable[[Form], Content]
    """Returns the content that a form has. Raises `Refusal`."""
    initial: Callable[[View], Names]
    """Returns the values of `fields` for the content of a version."""
    facts: Callable[[View, str], Facts]
    """Returns the content of a version in words, by the label of each field, with prices in the given currency."""
    on_creation: str
    """What else the creation of an entry means, for the effect that the form states."""


def _number(name: str, label: str, group: str = "", **given: Any) -> Field:
    """Return a field for a number, which is optional if it is in a group."""
    return Field(name, label, "number", required=not group, group=group, **given)


def _texts(form: Form, *names: str) -> Content:
    return {name: form.text(name) for name in names if form.text(name)}


def _numbers(form: Form, *names: str) -> Content:
    return {name: whole(form.text(name), "a number", field=name) for name in names if form.text(name)}


_GPUS: Final = "GPUs of a slice"
_ROOT_DISK: Final = "Disk and network of a slice"
_PLACEMENT: Final = "Placement"
_PRICE: Final = "Price and times"
_MODES: Final = ("private-nat", "public-nat")
_FABRICS: Final = {
    "none": "none: every slot is suitable",
    "ib": "ib: InfiniBand",
    "roce": "roce: RDMA over converged Ethernet",
    "ethernet": "ethernet: Ethernet without RDMA",
}
_NUMA: Final = {
    "any": "any: a slice can use several NUMA nodes of its host",
    "single": "single: processors, memory, GPUs and fabric device of a slice are on one NUMA node",
}
_POLICIES: Final = {
    "pack": "pack: a node is filled before the next one is used",
    "spread": "spread: empty nodes are preferred",
}
_FIELDS_OF_SKU: Final = (
    _number("vcpus", "Virtual processors, such as 4", example="4"),
    _number("memory_gib", "Memory in GiB, such as 16 or 0.5", example="16", pointer="/memory_mib"),
    Field("gpu_model", "Model of the GPUs, as the command “sliceplane slots show” prints it (empty: no GPUs)", required=False, group=_GPUS),
    _number("gpu_count", "Number of GPUs (0: no GPUs)", _GPUS, value="0"),
    _number("disk_gib", "Root disk in GiB (0: no root disk)", _ROOT_DISK, value="0"),
    Field("fabric", "Fabric that a slot must offer (ib: InfiniBand; roce: RDMA over converged Ethernet; ethernet: without RDMA; none: every slot is suitable)",
          "choice", required=False, value=_NONE, choices=tuple(_FABRICS), group=_ROOT_DISK),
    Field("network_modes", "Network modes that an allocation may have (none chosen: all)", "several", required=False,
          value=" ".join(_MODES), choices=_MODES, group=_ROOT_DISK),
    _number("rate_mbit", "Rate limit in each direction, in Mbit/s (empty: not limited)", _ROOT_DISK),
    Field("placement", "Order of nodes (pack: a node is filled before the next one is used; spread: empty nodes are preferred)",
          "choice", required=False, value="pack", choices=tuple(_POLICIES), group=_PLACEMENT),
    Field("numa", "NUMA nodes (single: processors, memory, GPUs and fabric device of a slice are on one NUMA node; any: on any NUMA nodes)",
          "choice", required=False, value="any", choices=tuple(_NUMA), group=_PLACEMENT),
    Field("price_per_hour", "Price of one slot per hour", "money", required=False, value="0", group=_PRICE),
    _number("provisioning_seconds", "Seconds after which a slice that is not ready has failed", _PRICE, value="120"),
    _number("max_lease_hours", "Longest lease in hours (empty: not limited by the SKU)", _PRICE, pointer="/max_lease_seconds"),
)  # fmt: skip


def _content_of_sku(form: Form) -> Content:
    found = _numbers(form, "vcpus", "gpu_count", "disk_gib", "rate_mbit", "provisioning_seconds")
    found |= _texts(form, "gpu_model", "fabric", "placement", "numa", "price_per_hour")
    for name, field in (("memory_mib", "memory_gib"), ("max_lease_seconds", "max_lease_hours")):
        if text := form.text(field):
            found[name] = scaled(text, *LIMIT_UNITS[name], field=field)
    if modes := form.listed("network_modes"):
        found["network_modes"] = modes
    return found


def _initial_of_sku(view: View) -> Names:
    lease = view["max_lease_seconds"]
    return {
        **_shown(view, _FIELDS_OF_SKU),
        "memory_gib": in_unit(view["memory_mib"], "memory_mib"),
        "max_lease_hours": "" if lease is None else in_unit(lease, "max_lease_seconds"),
        "network_modes": " ".join(view["network_modes"]),
    }


def _shown(view: View, fields: tuple[Field, ...]) -> dict[str, str]:
    """Return the values of the fields that have the name and the unit of the API."""
    return {
        each.name: "" if view[each.name] is None else str(view[each.name])
        for each in fields
        if not each.pointer
    }


def _facts_of_sku(view: View, currency: str) -> Facts:
    rate, lease = view["rate_mbit"], view["max_lease_seconds"]
    return {
        "Virtual processors": f"{view['vcpus']}",
        "Memory": mib(view["memory_mib"]),
        "GPUs": f"{view['gpu_count']} × {view['gpu_model']}" if view["gpu_count"] else _NONE,
        "Root disk": _gib(view["disk_gib"]),
        "Fabric": _FABRICS[view["fabric"]],
        "Network modes": ", ".join(view["network_modes"]),
        "Rate limit": "not limited" if rate is None else f"{rate:,} Mbit/s in each direction",
        "Placement": _POLICIES[view["placement"]],
        "NUMA": _NUMA[view["numa"]],
        "Price": f"{view['price_per_hour']} {currency} per slot and hour",
        "Time to become ready": f"{view['provisioning_seconds']:,} seconds; a slice that is not ready then has failed",
        "Longest lease": "not limited by the SKU"
        if lease is None
        else f"{in_unit(lease, 'max_lease_seconds')} hours",
    }


_DISK_IMAGE: Final = "Disk image (qcow2 or raw)"
_GUEST: Final = "Guest"
_FORMATS: Final = {
    "qcow2": "qcow2: disk image",
    "raw": "raw: disk image",
    "kernel": "kernel: kernel and initial RAM disk in the images folder of a node",
}
# The architecture has no field: the API accepts only one, which is its default.
_FIELDS_OF_IMAGE: Final = (
    Field("format", "Format (qcow2, raw: disk image; kernel: kernel and initial RAM disk in the images folder of a node)",
          "choice", choices=tuple(_FORMATS), example="qcow2"),
    Field("digest", "Digest, sha256: and 64 hexadecimal digits (empty for the format kernel)", required=False, group=_DISK_IMAGE),
    _number("size_bytes", "Size in bytes (0 for the format kernel)", _DISK_IMAGE, value="0"),
    Field("firmware", "Firmware that boots the disk image (none for the format kernel)", "choice", required=False,
          value=_NONE, choices=(_NONE, "uefi", "bios"), group=_DISK_IMAGE),
    _number("minimum_disk_gib", "Smallest root disk that the image fits on, in GiB (0: not stated)", _DISK_IMAGE, value="0"),
    Field("default_user", "User that SSH keys log in as", required=False, value="root", group=_GUEST),
    _number("readiness_port", "TCP port of the readiness check", _GUEST, value="22", pointer="/readiness/port"),
    Field("readiness_banner", "Beginning of the line that a ready guest sends from this port (empty: an open port is sufficient)",
          required=False, value="SSH-", group=_GUEST, pointer="/readiness/banner"),
)  # fmt: skip


def _content_of_image(form: Form) -> Content:
    found = _texts(form, "format", "digest", "firmware", "default_user")
    found |= _numbers(form, "size_bytes", "minimum_disk_gib")
    if found.get("firmware") == _NONE:
        del found["firmware"]
    # The banner is compared with the bytes of the guest, so that a space at its end has a meaning.
    banner = "".join(form.every("readiness_banner")[:1])
    port = form.text("readiness_port")
    checked = {"port": whole(port, "a TCP port", field="readiness_port")} if port else {}
    return {**found, "readiness": {**checked, "banner": banner}}


def _initial_of_image(view: View) -> Names:
    check = view["readiness"]
    return {
        **_shown(view, _FIELDS_OF_IMAGE),
        "firmware": view["firmware"] or _NONE,
        "readiness_port": str(check["port"]),
        "readiness_banner": check["banner"],
    }


def _facts_of_image(view: View, _currency: str) -> Facts:
    check, size = view["readiness"], view["size_bytes"]
    line = Markup(", and the server at this port sends a line that begins with <code>{}</code>").format(
        check["banner"]
    )
    return {
        "Format": _FORMATS[view["format"]],
        "Digest": Markup("<code>{}</code>").format(view["digest"]) if view["digest"] else _NONE,
        "Size": f"{size / _GIB:.2f} GiB ({size:,} bytes)" if size else "not recorded",
        "Architecture": view["architecture"],
        "Firmware": view["firmware"] or _NONE,
        "Smallest root disk": _gib(view["minimum_disk_gib"]),
        "User of SSH keys": view["default_user"],
        "Readiness check": Markup("TCP port {} is open{}").format(
            check["port"], line if check["banner"] else ""
        ),
    }


def _gib(size: int) -> str:
    return f"{size:,} GiB" if size else _NONE


SKUS: Final = Kind(
    "sku", "SKU", "skus", "lab.small", _FIELDS_OF_SKU, _content_of_sku, _initial_of_sku, _facts_of_sku,
    "A slot is offered under the SKU when its approval names or chooses the SKU.",
)  # fmt: skip
IMAGES: Final = Kind(
    "image", "image", "images", "debian", _FIELDS_OF_IMAGE, _content_of_image, _initial_of_image, _facts_of_image,
    "The image itself is not uploaded: nodes read disk images from the image store, and images of the format kernel"
    " from their own images folder.",
)  # fmt: skip


def _publish_words(kind: Kind, name: Words, form: Form) -> Words:
    return (kind.path, "publish", *name, *_options(kind, form))


def _options(kind: Kind, form: Form) -> Iterator[str]:
    """Yield the options of the command line for the content that a form has. Options with their default are omitted."""
    usual = dict(_flat(kind.content(Form([(each.name, each.value) for each in kind.fields]))))
    for name, value in _flat(kind.content(form)):
        option = f"--{name.removesuffix(_SECONDS).replace('_', '-')}"
        if value == usual.get(name):
            continue
        if isinstance(value, list):
            for each in value:
                yield from (option.removesuffix("s"), each)
        else:
            yield from (option, f"{value}s" if name.endswith(_SECONDS) else str(value))


def _flat(content: Content) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each field. The name of a field within a record begins with that of the record: the
    field `port` of `readiness` is `readiness_port`.
    """
    for name, value in content.items():
        if isinstance(value, dict):
            yield from ((f"{name}_{part}", each) for part, each in value.items())
        else:
            yield name, value


def _creating(kind: Kind) -> Mapping[str, Action]:
    name = Field("name", f"Name, such as {kind.example}", example="NAME")
    action = f"publish-{kind.name}"
    return {
        action: Action(
            f"Publish {kind.word}", action,
            f"The {kind.word} gets its version 1, and new allocations can name it from now on. {kind.on_creation}",
            lambda form: Call("POST", (), {"name": form.text("name"), **kind.content(form)}),
            lambda _name, form: (*_publish_words(kind, (form.text("name"),), form), "--new"),
            fields=(name, *kind.fields),
            made=lambda answer: f"/{kind.path}/{in_path(answer['name'])}",
        ),
    }  # fmt: skip


def _changing(kind: Kind) -> Mapping[str, Action]:
    async def content(visit: Visit, view: View) -> Facts:
        return kind.facts(view, visit.user["currency"])

    return {
        "publish-version": Action(
            "Publish a new version", "publish",
            f"New allocations of the {kind.word} use the new version from now on, also if the {kind.word} was retired."
            " Existing allocations keep their version. Nothing changes if the newest version is offered and has these"
            " values already. A field that is empty does not keep its value in the newest version.",
            lambda form: Call("PUT", (), kind.content(form)),
            lambda name, form: _publish_words(kind, name, form),
            fields=kind.fields, initial=kind.initial, preposition="of",
        ),
        f"retire-{kind.name}": Action(
            "Retire", "retire",
            f"No new allocation can name the {kind.word}. Existing allocations are not affected. A new version offers the"
            f" {kind.word} again.",
            with_reason("retire"), words(kind.path, "retire", reason=True), fields=(REASON,), dangerous=True,
            facts=content,
        ),
    }  # fmt: skip


def _load(kind: Kind) -> Callable[[Visit, Names], Any]:
    async def load(visit: Visit, names: Names) -> View:
        return with_effective_actions(kind, await visit.get(kind.path, names[kind.name]))

    return load


def with_effective_actions(kind: Kind, entry: View) -> View:
    """Return the view of an entry, changed so that the retirement of a retired entry is not allowed."""
    done = {"retire": "retired"} if entry["state"] == "retired" else {}
    return without_repeated({**entry, "id": entry["name"]}, kind.word, done)


def _entries(kind: Kind) -> Resource:
    return Resource(
        kind.word, _changing(kind),
        path=lambda names: (kind.path, names[kind.name]),
        page=lambda names: f"/{kind.path}/{in_path(names[kind.name])}",
        facts=lambda view: {"Newest version": view["version"], "Retired": view["reason"]},
        label=lambda names: names[kind.name],
        words=lambda names: (names[kind.name],),
        load=_load(kind),
    )  # fmt: skip


SKU: Final = _entries(SKUS)
IMAGE: Final = _entries(IMAGES)
NEW_SKU: Final = list_of("skus", _creating(SKUS), "catalogue:write")
NEW_IMAGE: Final = list_of("images", _creating(IMAGES), "catalogue:write")
