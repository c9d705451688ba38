"""What can be said against a request for an allocation before looking at capacity. Each check speaks of one field."""

from collections.abc import Iterable
from typing import Final

from control_plane.decisions.refusals import Conflict, Malformed, Objection, UnknownName
from control_plane.decisions.skus import SKUS, Images
from events.values import ImageName, SkuName

MODES: Final = ("private-nat", "private-routed", "public-nat", "overlay", "fabric-only")
OFFERED: Final = ("private-nat", "public-nat")


def sku_offered(raw: str) -> SkuName:
    """Raises `UnknownName`."""
    if raw not in SKUS:
        raise UnknownName(Objection("unknown_sku", f"no SKU is named {raw!r}; there is {_list(SKUS)}"))
    return SkuName(raw)


def image_offered(raw: str, images: Images) -> ImageName:
    """Raises `UnknownName`."""
    if (name := ImageName(raw)) not in images:
        raise UnknownName(Objection("unknown_image", f"no image is named {raw!r}; there is {_list(images)}"))
    return name


def network_mode_offered(raw: str) -> str:
    """Raises `Malformed` for no mode at all, `Conflict` for one that is refused (ALC-7)."""
    if raw == "fabric-only":
        why = "without a management path a slice can be neither reached nor proved ready, and the fabric is none"
        raise Conflict(Objection("fabric_only_refused", why))
    if raw not in MODES:
        raise Malformed(
            Objection("unknown_network_mode", f"{raw!r} is no network mode; there is {_list(MODES)}")
        )
    if raw not in OFFERED:
        why = f"{raw} is not offered yet; there is {_list(OFFERED)}"
        raise Conflict(Objection("network_mode_not_offered", why))
    return raw


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
