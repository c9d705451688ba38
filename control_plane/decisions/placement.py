"""Choice of the slots of an allocation: all on one node, the fullest one that still has enough free slots.

Filling a node before using the next keeps whole nodes free for requests of many slots. On a node, slots with failed
bring-ups are used last: this way a node that is broken as a whole fails in several slots, and is recognised as broken.
The choice is a function of the candidates alone, so it can be replayed and explained.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from control_plane.decisions.refusals import Conflict, Objection, UnknownName
from events.values import NodeId, SkuName, SlotId, node_of

_NO_FAILURES: Final[Mapping[SlotId, int]] = MappingProxyType({})


def fits(candidates: Iterable[SlotId], count: int) -> bool:
    """Return whether at least one node has `count` of the candidate slots."""
    return max(map(len, _by_node(candidates)), default=0) >= count


def choose(
    candidates: Iterable[SlotId],
    count: int,
    sku: SkuName,
    failures: Mapping[SlotId, int] = _NO_FAILURES,
    *,
    node: NodeId | None = None,
) -> tuple[SlotId, ...]:
    """Choose `count` of the candidates (free slots of the SKU) on one node. Raises `Conflict` if no node has enough.

    `failures` maps a slot to the number of its consecutive failed bring-ups, if it has any. If the request names a
    `node`, all candidates are slots of that node.
    """
    enough = [slots for slots in _by_node(candidates) if len(slots) >= count]
    if not enough:
        what = "a free slot" if count == 1 else f"{count} free slots"
        what = f"{what} of SKU {sku}"
        lacking = f"no schedulable node has {what}" if node is None else f"node {node} does not have {what}"
        raise Conflict(Objection("no_capacity", lacking, "/slot_count"))
    fullest = min(enough, key=_room_and_name)
    return tuple(sorted(sorted(fullest, key=lambda slot: (failures.get(slot, 0), slot))[:count]))


def only_simulated_left(count: int, sku: SkuName) -> Conflict:
    """Return the refusal of a request for which only simulated nodes have free slots, and that names none of these
    nodes.
    """
    what = "a free slot" if count == 1 else f"{count} free slots"
    reason = (
        f"only simulated nodes have {what} of SKU {sku}, and this deployment does not place slices on them; "
        "name one as the request's node, or set SLICEPLANE_PLACE_ON_SIMULATED_NODES=true for the API"
    )
    return Conflict(Objection("only_simulated_nodes", reason, "/node"))


def node_blocked(node: NodeId, blocked_by: str) -> Conflict:
    """Return the refusal of a request that names a node on which no slices are placed now."""
    reason = f"node {node} is not schedulable now: {blocked_by}; omit the node, or name another node"
    return Conflict(Objection("node_blocked", reason, "/node"))


def unknown_node(node: NodeId) -> UnknownName:
    """Return the refusal of a request that names a node that is not registered."""
    reason = f"no node is named {node}; omit the node, or name another node"
    return UnknownName(Objection("unknown_node", reason, "/node"))


def _by_node(candidates: Iterable[SlotId]) -> list[list[SlotId]]:
    by_node: defaultdict[NodeId, list[SlotId]] = defaultdict(list)
    for slot in candidates:
        by_node[node_of(slot)].append(slot)
    return list(by_node.values())


def _room_and_name(slots: list[SlotId]) -> tuple[int, SlotId]:
    return len(slots), slots[0]
