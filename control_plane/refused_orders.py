"""What a node would not touch: an order of its own, a bad copy of one, or something that was never ours.

The refusal of an order ends it. That of a copy (forged, expired, signed by an unknown key) does not: anybody who can
write to a queue can spoil a copy, so the order stays due and another copy is sent. What a node says of ids is tied to
an order only if that is one of its own. Either is recorded once for each code, however often it is said: an order of
its own by its id, all other ids together, and all codes that this release does not know together. A node can make up
ids and codes without end, and the ledger keeps what it is told.
"""

from typing import Final, NamedTuple
from uuid import UUID

import msgspec
import sqlalchemy as sa
import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane import task_rows, work
from control_plane.handle import Decision, Transaction
from control_plane.operation_reports import refuse_operation
from control_plane.refused_before import Refusal, is_first
from events.append import Change
from events.envelope import Cause
from events.facts import Reason
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
"""What refusals are counted under whose id is no order of the node, and whose code is none of ours."""


async def take_refusal(
    transaction: Transaction, node_id: NodeId, body: reports.OrderRefused, cause: Cause
) -> Decision:
    """Take a node's word that it would not do something."""
    conn, reason = transaction.conn, Reason(body.reason.code, body.reason.message)
    is_copy = reason.code in BAD_COPY
    if is_copy:
        await task_rows.note(conn, node_id, body.order_id, reason)
    elif (
        operation := await refuse_operation(transaction, node_id, body.order_id, reason, cause)
    ) is not None:
        return operation
    else:
        await task_rows.end(conn, node_id, body.order_id, task_rows.refusal(reason), transaction.now)
    if body.slot_id is not None and node_of(body.slot_id) != node_id:
        log.warning("report_not_its_own", node=node_id, slot=body.slot_id)
        return Decision((), cause)
    order = await _order(conn, node_id, body.order_id)
    slot = body.slot_id or (None if order is None else order.slot_id)
    if order is not None and order.allocation_id is not None:
        # The order's story is its allocation's.
        cause = msgspec.structs.replace(cause, correlation_id=correlation_of(order.allocation_id))
    # The node's row is locked before anything is counted, as by every command that counts.
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


class _Order(NamedTuple):
    """What an order or operation is about, if about a slot or an allocation at all."""

    slot_id: SlotId | None
    allocation_id: AllocationId | None


async def _order(conn: AsyncConnection, node_id: NodeId, order_id: UUID) -> _Order | None:
    """None when it is none of the node's."""
    task = work.task
    mine = task.c.order_id == order_id, task.c.node_id == node_id
    row = (await conn.execute(sa.select(task.c.slot_id, task.c.allocation_id).where(*mine))).one_or_none()
    return None if row is None else _Order(*row)
