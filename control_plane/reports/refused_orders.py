"""Reports of refused orders: a node refused its own order, an invalid copy of an order, or a message of another kind.

If a node refuses the order itself, the order ends. If it refuses an invalid copy of an order (forged, expired, signed
by an unknown key), the order does not end: any process that can write to a queue can spoil a copy, so the order stays
due and another copy is sent. An id that a node reports is linked to an order only if the order is the node's own.

A refusal is recorded once for each pair of order and reason code, however often the node reports it. All ids that are
not orders of the node count as one order, and all codes that this release does not know count as one code: a node can
invent any number of ids and codes, and the ledger keeps every event.
"""

from typing import Final, NamedTuple
from uuid import UUID

import msgspec
import sqlalchemy as sa
import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.loaded import locked_node
from control_plane.decisions.task_states import refusal
from control_plane.handle import Decision, Transaction
from control_plane.reports.operation_reports import refuse_operation
from control_plane.work import tables, task_rows
from control_plane.work.refusal_counts import Refusal, is_first
from events.envelope import Cause
from events.facts import Reason
from events.ledger.append import Change
from events.nodes import HeadEvidence, NodeHeadRefused
from events.orders import MessageRefused, OrderFact, OrderRefused
from events.values import AllocationId, NodeId, SlotId, correlation_of, node_of, stream_of_node
from read_models import nodes
from tasks import reports
from tasks.reasons import RefusalCode, codes
from tasks.sealed import BAD_COPY

log = structlog.get_logger()
_CODES: Final = frozenset(codes(RefusalCode))
_NO_ORDER: Final = "unknown"
_NO_CODE: Final = "unknown"
"""Substitutes under which refusals are counted: `_NO_ORDER` for an id that is not the id of an order of the node, and
`_NO_CODE` for a reason code that this release does not know.
"""


async def take_refusal(
    transaction: Transaction, node_id: NodeId, body: reports.OrderRefused, cause: Cause
) -> Decision:
    """Return the facts that follow from a node's report that it refused a message of its queue."""
    conn, reason = transaction.conn, Reason(body.reason.code, body.reason.message)
    is_copy = reason.code in BAD_COPY
    if is_copy:
        await task_rows.set_reason(conn, node_id, body.order_id, reason)
    elif (
        operation := await refuse_operation(transaction, node_id, body.order_id, reason, cause)
    ) is not None:
        return operation
    else:
        await task_rows.end(conn, node_id, body.order_id, refusal(reason), transaction.now)
    if body.slot_id is not None and node_of(body.slot_id) != node_id:
        log.warning("report_from_wrong_node_ignored", node=node_id, slot=body.slot_id)
        return Decision((), cause)
    order = await _order(conn, node_id, body.order_id)
    slot = body.slot_id or (None if order is None else order.slot_id)
    if order is not None and order.allocation_id is not None:
        # An order's events belong to the timeline of its allocation.
        cause = msgspec.structs.replace(cause, correlation_id=correlation_of(order.allocation_id))
    # Lock the node's row before counting, as every command that counts does.
    node = await nodes.find(conn, node_id, lock=True)
    seen = Refusal(
        node_id,
        _NO_ORDER if order is None else str(body.order_id),
        reason.code if reason.code in _CODES else _NO_CODE,
    )
    if node is None or not await is_first(conn, seen, transaction.now):
        return Decision((), cause)
    fact: OrderFact = MessageRefused(node_id, body.order_id, reason)
    if slot is not None:
        fact = OrderRefused(node_id, slot, body.order_id, reason)
    return Decision((Change(stream_of_node(node_id), node.version, (fact,)),), cause)


async def take_refused_head(
    transaction: Transaction, node_id: NodeId, body: reports.HeadRefused, cause: Cause
) -> Decision:
    """Record that a node refused a head of the ledger. The node reports it once for each head that it holds."""
    node = await locked_node(transaction.conn, node_id)
    reason = Reason(body.reason.code, body.reason.message)
    fact = NodeHeadRefused(node_id, reason, HeadEvidence(body.held, body.refused))
    return Decision((Change(stream_of_node(node_id), node.version, (fact,)),), cause)


class _Order(NamedTuple):
    """The slot and the allocation that an order or operation concerns, if any."""

    slot_id: SlotId | None
    allocation_id: AllocationId | None


async def _order(conn: AsyncConnection, node_id: NodeId, order_id: UUID) -> _Order | None:
    """Return the slot and allocation of an order, or None if it is not an order of the node."""
    task = tables.task
    mine = task.c.order_id == order_id, task.c.node_id == node_id
    query = sa.select(task.c.slot_id, task.c.allocation_id).where(*mine)
    row = (await conn.execute(query)).mappings().one_or_none()
    return None if row is None else _Order(**row)
