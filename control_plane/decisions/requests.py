"""Checks of an allocation request before capacity is considered. Each check concerns one field."""

from collections.abc import Iterable
from typing import Final

from control_plane.decisions.refusals import Conflict, Malformed, Objection, UnknownName
from control_plane.decisions.skus import SKUS, Images
from events.values import ImageName, SkuName

MODES: Final = ("private-nat", "private-routed", "public-nat", "overlay", "fabric-only")
OFFERED: Final = ("private-nat", "public-nat")


def sku_offered(raw: str) -> SkuName:
    """Return the SKU name if this release offers it. Raises `UnknownName`."""
    if raw not in SKUS:
        raise UnknownName(Objection("unknown_sku", f"unknown SKU {raw!r}; choose one of {_list(SKUS)}"))
    return SkuName(raw)


def image_offered(raw: str, images: Images) -> ImageName:
    """Return the image name if it is one of the images. Raises `UnknownName`."""
    if (name := ImageName(raw)) not in images:
        raise UnknownName(Objection("unknown_image", f"unknown image {raw!r}; choose one of {_list(images)}"))
    return name


def network_mode_offered(raw: str) -> str:
    """Return the network mode if it is offered.

    Raises `Malformed` for an unknown mode, and `Conflict` for a mode that is refused (ALC-7).
    """
    if raw == "fabric-only":
        reason = (
            "network mode fabric-only is not supported: without a management network, a slice cannot be reached and its"
            f" readiness cannot be checked; choose one of {_list(OFFERED)}"
        )
        raise Conflict(Objection("fabric_only_refused", reason))
    if raw not in MODES:
        raise Malformed(
            Objection("unknown_network_mode", f"unknown network mode {raw!r}; choose one of {_list(OFFERED)}")
        )
    if raw not in OFFERED:
        reason = f"network mode {raw} is not supported yet; choose one of {_list(OFFERED)}"
        raise Conflict(Objection("network_mode_not_offered", reason))
    return raw


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
