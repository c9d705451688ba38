"""Commands that count bring-ups that failed due to node faults, and exclude slots and nodes from placement or readmit
them.
"""

from collections.abc import Iterable

from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.loaded import locked_node
from control_plane.decisions.fleet.exclusion import (
    node_failed,
    node_succeeded,
    readmit_node,
    readmit_slot,
    slot_failed,
    slot_succeeded,
)
from control_plane.decisions.refusals import Objection, UnknownName
from control_plane.handle import Command, Decision, Transaction
from control_plane.origin import Origin
from events.facts import FailedBringUp
from events.ledger.append import Change
from events.nodes import NodeFact
from events.values import AllocationId, NodeId, SlotId, StreamId, stream_of_node, stream_of_slot
from read_models import nodes, slots
from read_models.nodes import NodeRow
from read_models.slots import SlotRow


async def failure_changes(conn: AsyncConnection, row: SlotRow, failure: FailedBringUp) -> tuple[Change, ...]:
    """Return the ledger changes that count a failed bring-up against slot and node. The slot's row must be locked."""
    node = await locked_node(conn, row.node_id)
    in_slot = slot_failed(failure, row.failures, row.excluded)
    on_node = node_failed(row.node_id, failure, node.failures, node.excluded)
    return Change(stream_of_slot(row.slot_id), row.version, in_slot), *_node_change(node, on_node)


async def success_changes(
    conn: AsyncConnection, row: SlotRow, allocation: AllocationId
) -> tuple[Change, ...]:
    """Return the ledger changes that reset nonzero failure counts of slot and node. The slot's row must be locked."""
    in_slot = slot_succeeded(row.slot_id, allocation, row.failures, row.excluded)
    own = (Change(stream_of_slot(row.slot_id), row.version, in_slot),) if in_slot else ()
    node = await nodes.find(conn, row.node_id)
    assert node is not None, "a slot must belong to a registered node"
    if not node.failures and node.excluded is None:
        # Usually no lock is needed: a concurrent failure on another slot counts as the later event of the two.
        return own
    node = await locked_node(conn, row.node_id)
    on_node = node_succeeded(row.slot_id, allocation, row.node_id, node.failures, node.excluded)
    return *own, *_node_change(node, on_node)


def _node_change(node: NodeRow, facts: tuple[NodeFact, ...]) -> tuple[Change, ...]:
    return (Change(stream_of_node(node.node_id), node.version, facts),) if facts else ()


def merged_by_stream(changes: Iterable[Change]) -> tuple[Change, ...]:
    """Merge all changes of the same ledger stream into one change, keeping the order of their facts."""
    by_stream: dict[StreamId, Change] = {}
    for each in changes:
        before = by_stream.get(each.stream)
        assert before is None or before.expected_version == each.expected_version
        by_stream[each.stream] = each if before is None else each._replace(facts=(*before.facts, *each.facts))
    return tuple(by_stream.values())


def readmit_node_to_placement(node: NodeId, reason: str, origin: Origin) -> Command:
    """Readmit an excluded node to placement. Raises `UnknownName`, and `Conflict` for a node that is not excluded."""

    async def command(transaction: Transaction) -> Decision:
        row = await locked_node(transaction.conn, node)
        fact = readmit_node(node, row.excluded, reason)
        return Decision(_node_change(row, (fact,)), origin.at(transaction.now))

    return command


def readmit_slot_to_placement(slot: SlotId, reason: str, origin: Origin) -> Command:
    """Readmit an excluded slot to placement. Raises `UnknownName`, and `Conflict` for a slot that is not excluded."""

    async def command(transaction: Transaction) -> Decision:
        row = (await slots.locked(transaction.conn, [slot])).get(slot)
        if row is None:
            raise UnknownName(
                Objection("unknown_slot", f"there is no slot {slot}: its node has not reported it")
            )
        fact = readmit_slot(slot, row.excluded, reason)
        return Decision((Change(stream_of_slot(slot), row.version, (fact,)),), origin.at(transaction.now))

    return command
