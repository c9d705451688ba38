"""What nodes report of operations, as facts of the tasks that these are tries at.

A node answers for operations of its own alone. What it says of a try that is over already is logged, and is no fact.
"""

from typing import assert_never
from uuid import UUID

import msgspec
import structlog

from control_plane import task_rows
from control_plane.commands.tasks import changed
from control_plane.decisions import tasks as deciding
from control_plane.decisions.tasks import Task
from control_plane.handle import Decision, Transaction
from control_plane.histories import task_history
from control_plane.task_rows import CANCEL, End, Tried
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
    """An operation ended, with its result or with its reason."""
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
    """The node refused what goes by this id; None when that is no operation of it."""
    if await task_rows.tried(transaction.conn, operation_id, node) is None:
        return None
    return await _ended(transaction, node, operation_id, reason, cause)


async def _ended(
    transaction: Transaction, node: NodeId, operation_id: UUID, how: OperationResult | Reason, cause: Cause
) -> Decision:
    tried = await task_rows.tried(transaction.conn, operation_id, node)
    if tried is None:
        log.warning("report_not_its_own", node=node, operation=str(operation_id))
        return Decision((), cause)
    history = await task_history(transaction.conn, tried.task_id)
    state = deciding.fold(history)
    assert state is not None, "an operation has a row once its task was asked for"
    facts = _facts(state, tried, how)
    if not facts:
        log.info("operation_report_without_news", node=node, operation=str(operation_id), state=tried.state)
    last = history[-1].leads_to(actor=cause.actor, why=cause.why, observed_at=cause.observed_at)
    decision = await changed(transaction, history, facts, Decision((), last))
    # Whatever it was, it is over on the node and is not to be sent again.
    await task_rows.end(transaction.conn, node, operation_id, _end_of(how), transaction.now)
    return decision


def _facts(state: Task, tried: Tried, how: OperationResult | Reason) -> tuple[TaskFact, ...]:
    if tried.kind == CANCEL:
        if isinstance(how, OperationCancelled):
            return deciding.stopped(state, tried.attempt, was_running=how.was_running)
        return ()
    if isinstance(how, Reason):
        return deciding.failed(state, tried.attempt, how, CATALOGUE[tried.kind])
    if how.kind != tried.kind:
        wrong = Reason("wrong_result", f"the node answered with the result of {how.kind}")
        return deciding.failed(state, tried.attempt, wrong, CATALOGUE[tried.kind])
    return deciding.done(state, tried.attempt, _canonical(how))


def _end_of(how: OperationResult | Reason) -> End:
    if isinstance(how, Reason):
        return task_rows.failure(how)
    return End("done", result=_canonical(how))


def _canonical(result: OperationResult) -> str:
    return msgspec.json.encode(result.model_dump(mode="json"), order="sorted").decode()
