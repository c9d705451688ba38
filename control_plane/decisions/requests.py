"""Checks of an allocation request that depend neither on the catalogue nor on free capacity."""

from collections.abc import Iterable
from typing import Final, assert_never, get_args

from control_plane.decisions.refusals import Conflict, Malformed, Objection
from events.values import NetworkMode

_OFFERED: Final[dict[str, NetworkMode]] = {mode: mode for mode in get_args(NetworkMode)}
_PLANNED: Final = ("private-routed", "overlay")
"""Modes that users may know from the documentation; no release offers them yet."""


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
