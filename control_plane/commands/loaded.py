"""Load and lock the state that a command decides on: an allocation with its slots, or a node."""

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.decisions import allocation as life
from control_plane.decisions.allocation_states import Accepted, Requested, fold
from control_plane.decisions.fleet.slots import begin_release
from control_plane.decisions.ingress import IngressStates, ingress_states_of
from control_plane.decisions.refusals import Conflict, Objection, UnknownName
from control_plane.decisions.tasks import unsupported_by_agent
from control_plane.histories import allocation_history
from control_plane.identity.sessions import supported_task_types
from events.allocations import (
    AllocationFact,
    AllocationFailed,
    AllocationReleasing,
    AllocationReplaced,
    SliceAddressObserved,
    SliceRemovalIncomplete,
)
from events.envelope import Recorded
from events.ledger.append import Change
from events.slots import SlotFact
from events.values import AllocationId, NodeId, SlotId, stream_of_allocation, stream_of_slot
from read_models import nodes, slots
from read_models.nodes import NodeRow
from read_models.slots import SlotRow


@dataclass(frozen=True, slots=True)
class LoadedAllocation:
    """An allocation as loaded by a command: its history, the state folded from it, and the locked rows of its slots,
    including those of earlier placements.
    """

    history: tuple[Recorded[AllocationFact], ...]
    state: Accepted
    rows: dict[SlotId, SlotRow]

    def changes(self, facts: tuple[AllocationFact, ...], *slot_changes: Change) -> tuple[Change, ...]:
        """Return the ledger changes that append facts to the allocation's stream. The changes also release the
        allocation's slots if a fact ends the allocation or moves it to another node.
        """
        if not facts:
            return slot_changes
        stream = stream_of_allocation(self.state.request.allocation_id)
        own = Change(stream, self.history[-1].version, facts)
        return own, *(self._releases() if _ends_claims(facts) else ()), *slot_changes

    def slot_change(self, slot: SlotId, facts: tuple[SlotFact, ...]) -> tuple[Change, ...]:
        """Return the ledger change that appends facts to a slot's stream; an empty tuple if there are no facts."""
        return (Change(stream_of_slot(slot), self.rows[slot].version, facts),) if facts else ()

    @property
    def ingress_rules(self) -> IngressStates:
        """The states of the allocation's ingress rules, by the id of the rule."""
        return ingress_states_of(recorded.fact for recorded in self.history)

    def is_new(self, fact: SliceAddressObserved | SliceRemovalIncomplete) -> bool:
        """Return whether a reported fact differs from the last recorded fact of its type about the same slot."""
        return life.is_new(tuple(recorded.fact for recorded in self.history), fact)

    def leftovers(self, slot: SlotId) -> tuple[str, ...]:
        """Return the remains of a slice in a slot, as the node reported them last; empty if it has reported none."""
        facts = (recorded.fact for recorded in reversed(self.history))
        remains = (
            fact for fact in facts if isinstance(fact, SliceRemovalIncomplete) and fact.slot_id == slot
        )
        return next((fact.leftovers for fact in remains), ())

    def _releases(self) -> tuple[Change, ...]:
        by = self.state.request.allocation_id
        return tuple(
            change
            for row in self.rows.values()
            for change in self.slot_change(row.slot_id, begin_release(row.slot_id, row.state, by))
        )


def _ends_claims(facts: tuple[AllocationFact, ...]) -> bool:
    return any(
        isinstance(fact, AllocationReleasing | AllocationReplaced | AllocationFailed) for fact in facts
    )


async def load(conn: AsyncConnection, allocation: AllocationId) -> LoadedAllocation:
    """Load an allocation and lock the rows of its slots. Raises `UnknownName` if it does not exist."""
    history = await allocation_history(conn, allocation)
    state = fold(tuple(recorded.fact for recorded in history))
    if state is None or isinstance(state, Requested):
        raise UnknownName(Objection("unknown_allocation", f"there is no allocation {allocation}"))
    rows = await slots.locked(conn, [slot.slot_id for slot in (*state.slots, *state.former.slots)])
    return LoadedAllocation(history, state, rows)


async def locked_node(conn: AsyncConnection, node: NodeId) -> NodeRow:
    """Return a node and lock its row. Rows of slots must be locked before it. Raises `UnknownName`."""
    row = await nodes.find(conn, node, lock=True)
    if row is None:
        raise UnknownName(Objection("unknown_node", f"no node is named {node}"))
    return row


async def check_supported(conn: AsyncConnection, nodes_to_check: Iterable[NodeId], announced: str) -> None:
    """Check that the agent of every given node reported support of the task type or feature `announced`. Raises
    `Conflict`.
    """
    against = [
        objection
        for node in sorted(set(nodes_to_check))
        for objection in unsupported_by_agent(node, await supported_task_types(conn, node), announced)
    ]
    if against:
        raise Conflict(*against)
