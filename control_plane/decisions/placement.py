"""Which slots an allocation gets: all of one node, and the fullest node that still has enough.

Filling a node before opening the next keeps whole nodes free for requests of many slots. The choice is a
function of the candidates alone, so it can be replayed and explained.
"""

from collections import defaultdict
from collections.abc import Iterable

from control_plane.decisions.refusals import Conflict, Objection
from events.values import NodeId, SkuName, SlotId, node_of


def fits(candidates: Iterable[SlotId], count: int) -> bool:
    """Whether some node has `count` of the candidates."""
    return max(map(len, _by_node(candidates)), default=0) >= count


def choose(candidates: Iterable[SlotId], count: int, sku: SkuName) -> tuple[SlotId, ...]:
    """`count` of the candidates, free slots of that SKU, of one node. Raises `Conflict` when no node has so many."""
    enough = [slots for slots in _by_node(candidates) if len(slots) >= count]
    if not enough:
        what = "a free slot" if count == 1 else f"{count} free slots"
        why = f"no node that slices are placed on now has {what} of SKU {sku}"
        raise Conflict(Objection("no_capacity", why, "/slot_count"))
    fullest = min(enough, key=_room_and_name)
    return tuple(sorted(fullest)[:count])


def _by_node(candidates: Iterable[SlotId]) -> list[list[SlotId]]:
    by_node: defaultdict[NodeId, list[SlotId]] = defaultdict(list)
    for slot in candidates:
        by_node[node_of(slot)].append(slot)
    return list(by_node.values())


def _room_and_name(slots: list[SlotId]) -> tuple[int, SlotId]:
    return len(slots), slots[0]
