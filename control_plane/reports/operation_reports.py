"""Nodes' reports about operations, recorded as facts of the tasks that these operations are tries of.

A node may report only its own operations. A report about a try that is already over is logged and adds no fact.
"""

from typing import assert_never
from uuid import UUID

import msgspec
import structlog

from control_plane.commands.tasks import changed
from control_plane.decisions import tasks as deciding
from control_plane.decisions.tasks import Task
from control_plane.handle import Decision, Transaction
from control_plane.histories import task_history
from control_plane.work import task_rows
from control_plane.work.task_rows import CANCEL, End, TryRow
from events.envelope import Cause
from events.facts import Reason
from events.tasks import TaskFact
from events.values import NodeId
from tasks import reports
from tasks.catalogue import CATALOGUE
from tasks.operations import OperationCancelled, OperationResult

log = structlog.get_logger()
OperationReport = reports.OperationDone | reports.OperationFailed


async def take_operation(
    transaction: Transaction, node: NodeId, body: OperationReport, cause: Cause
) -> Decision:
    """Return the decision that follows from the end of an operation, with its result or its failure."""
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
    """Return the decision that follows from a refused operation; None if the id is not an operation of the node."""
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
        log.warning("report_from_wrong_node", node=node, operation=str(operation_id))
        return Decision((), cause)
    history = await task_history(transaction.conn, row.task_id)
    state = deciding.fold(history)
    assert state is not None, "a task is requested before its operation has a row"
    facts = _facts(state, row, outcome)
    if not facts:
        log.info("operation_report_ignored", node=node, operation=str(operation_id), state=row.state)
    last = history[-1].leads_to(actor=cause.actor, reason=cause.reason, observed_at=cause.observed_at)
    decision = await changed(transaction, history, facts, Decision((), last))
    # Whatever the result, the operation is over on the node and must not be sent again.
    await task_rows.end(transaction.conn, node, operation_id, _end_of(outcome), transaction.now)
    return decision


def _facts(state: Task, row: TryRow, outcome: OperationResult | Reason) -> tuple[TaskFact, ...]:
    if row.kind == CANCEL:
        if isinstance(outcome, OperationCancelled):
            return deciding.stopped(state, row.attempt, was_running=outcome.was_running)
        return ()
    if isinstance(outcome, Reason):
        return deciding.failed(state, row.attempt, outcome, CATALOGUE[row.kind])
    if outcome.kind != row.kind:
        wrong = Reason("wrong_result", f"the node returned a result of {outcome.kind} instead of {row.kind}")
        return deciding.failed(state, row.attempt, wrong, CATALOGUE[row.kind])
    return deciding.done(state, row.attempt, _canonical(outcome))


def _end_of(outcome: OperationResult | Reason) -> End:
    if isinstance(outcome, Reason):
        return task_rows.failure(outcome)
    return End("done", result=_canonical(outcome))


def _canonical(result: OperationResult) -> str:
    return msgspec.json.encode(result.model_dump(mode="json"), order="sorted").decode()
