"""Nodes' reports about operations, recorded as facts of the requested tasks. An operation is one attempt of a task.

A node may report only its own operations. A report about an attempt that has already ended is logged and adds no fact.
"""

from typing import assert_never
from uuid import UUID

import msgspec
import structlog

from control_plane.commands.tasks import changed
from control_plane.decisions import tasks as deciding
from control_plane.decisions.task_states import End, failure
from control_plane.handle import Decision, Transaction
from control_plane.histories import task_history
from control_plane.work import task_rows
from events.envelope import Cause
from events.facts import Reason
from events.traces import trace_id
from events.values import NodeId
from tasks import reports
from tasks.operations import OperationResult

log = structlog.get_logger()
OperationReport = reports.OperationDone | reports.OperationFailed


async def take_operation(
    transaction: Transaction, node: NodeId, body: OperationReport, cause: Cause
) -> Decision:
    """Return the facts that follow from a node's report that an operation succeeded or failed."""
    match body:
        case reports.OperationDone():
            return await _ended(transaction, node, body.operation_id, body.result, cause)
        case reports.OperationFailed():
            reason = Reason(body.reason.code, body.reason.message)
            return await _ended(transaction, node, body.operation_id, reason, cause)
        case _:
            assert_never(body)


async def refuse_operation(
    transaction: Transaction, node: NodeId, operation_id: UUID, reason: Reason, cause: Cause
) -> Decision | None:
    """Return the facts that follow from a refused operation; None if the id is not an operation of the node."""
    if await task_rows.find_try(transaction.conn, operation_id, node) is None:
        return None
    return await _ended(transaction, node, operation_id, reason, cause)


async def _ended(
    transaction: Transaction,
    node: NodeId,
    operation_id: UUID,
    outcome: OperationResult | Reason,
    cause: Cause,
) -> Decision:
    row = await task_rows.find_try(transaction.conn, operation_id, node)
    if row is None:
        log.warning("report_from_wrong_node_ignored", node=node, operation=str(operation_id))
        return Decision((), cause)
    history = await task_history(transaction.conn, row.task_id)
    state = deciding.fold(history)
    assert state is not None, f"task {row.task_id} of operation {operation_id} has no recorded request"
    facts = deciding.reported(state, row.kind, row.attempt, outcome)
    if not facts:
        log.info(
            "operation_report_without_effect_on_task",
            node=node,
            operation=str(operation_id),
            task_state=row.state,
        )
    last = history[-1].leads_to(actor=cause.actor, reason=cause.reason, observed_at=cause.observed_at)
    # The attempt may belong to another request than the newest event, such as a request to cancel it. A trace that is
    # not one of the task's is not recorded, whatever the node reports.
    if trace_id(cause.trace_context) in {trace_id(each.cause.trace_context) for each in history}:
        last = msgspec.structs.replace(last, trace_context=cause.trace_context)
    decision = await changed(transaction, history, facts, Decision((), last))
    # Whatever the result, the operation is over on the node and must not be sent again.
    await task_rows.end(transaction.conn, node, operation_id, _end_of(outcome), transaction.now)
    return decision


def _end_of(outcome: OperationResult | Reason) -> End:
    if isinstance(outcome, Reason):
        return failure(outcome)
    return End("done", result=deciding.canonical(outcome))
