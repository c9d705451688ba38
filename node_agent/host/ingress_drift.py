"""Classification of a slot's drift by its effect on the slice's ingress rules."""

from collections.abc import Iterable
from typing import Final

from events.values import IngressId
from node_agent.host.slices import Difference

_INGRESS_KINDS: Final = frozenset({"ingress.changed", "ingress.foreign"})

_LOST_KINDS: Final = frozenset({"ingress.changed", "slice.unreachable"})


def concerns_ingress(difference: Difference) -> bool:
    """Return whether the drift concerns desired or foreign ingress rules."""
    return difference.kind in _INGRESS_KINDS


def lost_ingress(left: Iterable[Difference]) -> tuple[IngressId, ...]:
    """Return the ids of the slice's ingress rules that do not work because of this open drift."""
    changed = {each.ingress_id for each in left if each.kind in _LOST_KINDS}
    return tuple(sorted(each for each in changed if each is not None))


def has_foreign_ingress(left: Iterable[Difference]) -> bool:
    """Return whether the open drift shows foreign ingress rules to the slice, or connections through such rules."""
    return any(each.kind == "ingress.foreign" for each in left)
