"""What commands are about, as they find it and locked: an allocation with its slots, a node."""

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.decisions import allocation as life
from control_plane.decisions.allocation_states import Placed, Requested, fold
from control_plane.decisions.ingress import Ways, ways_of
from control_plane.decisions.refusals import Conflict, Objection, UnknownName
from control_plane.decisions.slots import give_back
from control_plane.decisions.tasks import not_spoken
from control_plane.histories import allocation_history
from control_plane.sessions import spoken
from events.allocations import (
    AllocationFact,
    AllocationFailed,
    AllocationReleasing,
    AllocationReplaced,
    SliceAddressObserved,
    SliceRemovalUnproved,
)
from events.append import Change
from events.envelope import Recorded
from events.slots import SlotFact
from events.values import AllocationId, NodeId, SlotId, stream_of_allocation, stream_of_slot
from read_models import nodes, slots
from read_models.nodes import NodeRow
from read_models.slots import SlotRow


@dataclass(frozen=True, slots=True)
class Living:
    """An allocation as loaded by a command: its history, the state folded from it, and the locked rows of its slots,
    including those of earlier placements.
    """

    history: tuple[Recorded[AllocationFact], ...]
    state: Placed
    rows: dict[SlotId, SlotRow]

    def changes(self, facts: tuple[AllocationFact, ...], *slot_changes: Change) -> tuple[Change, ...]:
        """Append facts to the allocation. If it ends or is placed on another node, its claimed slots are released."""
        if not facts:
            return slot_changes
        stream = stream_of_allocation(self.state.request.allocation_id)
        own = Change(stream, self.history[-1].version, facts)
        return own, *(self._given_back() if _gives_back(facts) else ()), *slot_changes

    def slot_change(self, slot: SlotId, facts: tuple[SlotFact, ...]) -> tuple[Change, ...]:
        return (Change(stream_of_slot(slot), self.rows[slot].version, facts),) if facts else ()

    @property
    def ways(self) -> Ways:
        """Its ways in from outside."""
        return ways_of(recorded.fact for recorded in self.history)

    def is_news(self, fact: SliceAddressObserved | SliceRemovalUnproved) -> bool:
        return life.is_news(tuple(recorded.fact for recorded in self.history), fact)

    def leftovers(self, slot: SlotId) -> tuple[str, ...]:
        """What the slot's node found there last of a slice that was to be gone; empty where it said nothing."""
        told = (recorded.fact for recorded in reversed(self.history))
        remains = (fact for fact in told if isinstance(fact, SliceRemovalUnproved) and fact.slot_id == slot)
        return next((fact.leftovers for fact in remains), ())

    def _given_back(self) -> tuple[Change, ...]:
        by = self.state.request.allocation_id
        return tuple(
            change
            for row in self.rows.values()
            for change in self.slot_change(
                row.slot_id, give_back(row.slot_id, row.allocation_id, row.state, by)
            )
        )


def _gives_back(facts: tuple[AllocationFact, ...]) -> bool:
    return any(
        isinstance(fact, AllocationReleasing | AllocationReplaced | AllocationFailed) for fact in facts
    )


async def load(conn: AsyncConnection, allocation: AllocationId) -> Living:
    """Find an allocation and lock its slots. Raises `UnknownName`."""
    history = await allocation_history(conn, allocation)
    state = fold(tuple(recorded.fact for recorded in history))
    if state is None or isinstance(state, Requested):
        raise UnknownName(Objection("unknown_allocation", f"there is no allocation {allocation}"))
    rows = await slots.locked(conn, [slot.slot_id for slot in (*state.slots, *state.former.slots)])
    return Living(history, state, rows)


async def locked_node(conn: AsyncConnection, node: NodeId) -> NodeRow:
    """Find a node and lock it, after whatever slots are locked. Raises `UnknownName`."""
    row = await nodes.find(conn, node, lock=True)
    if row is None:
        raise UnknownName(Objection("unknown_node", f"no node is named {node}"))
    return row


async def check_spoken(conn: AsyncConnection, hosts: Iterable[NodeId], announced: str) -> None:
    """Raises `Conflict` naming every node whose agent does not speak what others announce by this."""
    against = [
        objection
        for host in sorted(set(hosts))
        for objection in not_spoken(host, await spoken(conn, host), announced)
    ]
    if against:
        raise Conflict(*against)
