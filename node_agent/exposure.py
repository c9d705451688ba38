"""What a look at a slot says of its ways in from outside."""

from collections.abc import Iterable
from typing import Final

from events.values import IngressId
from node_agent.slices import Difference

_OF_WAYS: Final = frozenset({"mapping.changed", "mapping.foreign"})

_LOST: Final = frozenset({"mapping.changed", "slice.unreachable"})


def concerns_ways(difference: Difference) -> bool:
    """Whether it is about ways in, wanted ones or others."""
    return difference.kind in _OF_WAYS


def lost_ways(left: Iterable[Difference]) -> tuple[IngressId, ...]:
    """Those that are wanted and do not lead to the slice."""
    changed = {each.ingress_id for each in left if each.kind in _LOST}
    return tuple(sorted(each for each in changed if each is not None))


def has_others(left: Iterable[Difference]) -> bool:
    """Whether others than the wanted ones may lead to the slice, or connections that came in by such are left."""
    return any(each.kind == "mapping.foreign" for each in left)
