"""Checks of an allocation request that do not depend on free capacity. Each check concerns one field."""

from collections.abc import Iterable
from typing import Final, assert_never, get_args

from control_plane.decisions.refusals import Conflict, Malformed, Objection, UnknownName
from control_plane.decisions.skus import SKUS, Images
from events.values import ImageName, NetworkMode, SkuName

_OFFERED: Final[dict[str, NetworkMode]] = {mode: mode for mode in get_args(NetworkMode)}
_PLANNED: Final = ("private-routed", "overlay")
"""Modes that users may know from the documentation; no release offers them yet."""


def sku_offered(raw: str) -> SkuName:
    """Return the SKU name if this release offers it. Raises `UnknownName`."""
    if raw not in SKUS:
        raise UnknownName(Objection("unknown_sku", f"unknown SKU {raw!r}; choose one of {_list(SKUS)}"))
    return SkuName(raw)


def image_offered(raw: str, images: Images) -> ImageName:
    """Return the image name if the deployment offers this image. Raises `UnknownName`."""
    if (name := ImageName(raw)) not in images:
        raise UnknownName(Objection("unknown_image", f"unknown image {raw!r}; choose one of {_list(images)}"))
    return name


def network_mode_offered(raw: str) -> NetworkMode:
    """Return the network mode if this release offers it.

    Raises `Malformed` for an unknown mode, and `Conflict` for a known mode that is not offered (ALC-7).
    """
    if raw == "fabric-only":
        reason = (
            "network mode fabric-only is not supported: without a management network, a slice cannot be reached and its"
            f" readiness cannot be checked; choose one of {_list(_OFFERED)}"
        )
        raise Conflict(Objection("fabric_only_refused", reason))
    if raw in _PLANNED:
        reason = f"network mode {raw} is not supported yet; choose one of {_list(_OFFERED)}"
        raise Conflict(Objection("network_mode_not_offered", reason))
    if raw not in _OFFERED:
        raise Malformed(
            Objection(
                "unknown_network_mode", f"unknown network mode {raw!r}; choose one of {_list(_OFFERED)}"
            )
        )
    return _OFFERED[raw]


def permits_ingress(mode: NetworkMode) -> bool:
    """Return whether slices of this network mode can have ingress rules (ING-1)."""
    match mode:
        case "private-nat":
            return False
        case "public-nat":
            return True
        case _:
            assert_never(mode)


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
