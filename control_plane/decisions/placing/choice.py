"""Choice of the slots of an allocation, all on one node.

Among the suitable free slots, those with the preferred fabric come first, then those without unused GPUs or fabric,
then those with functions that are close to each other. On a node, slots with failed bring-ups are used last: this way a
node that is broken as a whole fails in several slots, and is recognised as broken. Among equally suitable nodes, a SKU
that packs gets the fullest one, which keeps whole nodes free for requests of many slots; a SKU that spreads gets the
emptiest one. The choice is a function of the candidates alone, so it can be replayed and explained.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from control_plane.decisions.placing.suitability import Demand, Suited
from control_plane.decisions.refusals import Conflict, Objection, UnknownName
from events.values import NodeId, SlotId, node_of

CORDONED: Final = "cordoned"
"""Code of the reason why no slice is placed on a node that an admin closed for new placements."""


class Candidate(NamedTuple):
    """A suitable free slot. `failures` is the number of its consecutive failed bring-ups."""

    suited: Suited
    failures: int = 0


def fits(candidates: Collection[SlotId], count: int) -> bool:
    """Return whether at least one node has `count` of the candidate slots."""
    return max(map(len, _by_node(candidates).values()), default=0) >= count


def choose(
    candidates: Mapping[SlotId, Candidate], free: Mapping[NodeId, int], count: int, demand: Demand
) -> tuple[SlotId, ...]:
    """Choose `count` of the candidates on one node. `free` is the number of usable free slots of each node, also of
    those that are no candidates. Raises `Conflict` if no node has enough candidates.
    """
    enough = {host: slots for host, slots in _by_node(candidates).items() if len(slots) >= count}
    if not enough:
        raise no_free_slots(count, demand)
    spreads = demand.sku.placement == "spread"

    def best_of(slots: Sequence[SlotId]) -> list[SlotId]:
        def rank(slot: SlotId) -> tuple[object, ...]:
            fabric, *rest = candidates[slot].suited
            return fabric, candidates[slot].failures, *rest, slot

        return sorted(slots, key=rank)[:count]

    def rank(host: NodeId) -> tuple[object, ...]:
        worst = max(candidates[slot].suited for slot in best_of(enough[host]))
        return worst, -free[host] if spreads else free[host], host

    return tuple(sorted(best_of(enough[min(enough, key=rank)])))


def no_free_slots(count: int, demand: Demand) -> Conflict:
    """Return the refusal of a request for which no node has enough free slots."""
    lacking = f"no schedulable node has {free_slots(count, demand)}"
    return Conflict(Objection("no_capacity", lacking, "/slot_count"))


def free_slots(count: int, demand: Demand) -> str:
    """Return the words for the requested number of free slots in messages."""
    what = "a free slot" if count == 1 else f"{count} free slots"
    return f"{what} of SKU {demand.name}"


def unknown_node(node: NodeId) -> UnknownName:
    """Return the refusal of a request that names a node that is not registered."""
    reason = f"no node is named {node}; omit the node, or name another node"
    return UnknownName(Objection("unknown_node", reason, "/node"))


def _by_node(candidates: Collection[SlotId]) -> dict[NodeId, list[SlotId]]:
    by_node: defaultdict[NodeId, list[SlotId]] = defaultdict(list)
    for slot in candidates:
        by_node[node_of(slot)].append(slot)
    return by_node
