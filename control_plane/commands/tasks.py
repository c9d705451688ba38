"""Commands about tasks: request, retry and cancel one, and end one that timed out.

A task is either one that an administrator requested, with a stream of its own, or the order of an allocation, which
belongs to the allocation's stream and is identified by the order's id. A command adds a fact to this stream, and
adapts the rows of `work.task` to it.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from uuid import UUID

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.loaded import load
from control_plane.decisions import allocation as life
from control_plane.decisions import tasks as deciding
from control_plane.decisions.refusals import Conflict, Objection, UnknownName
from control_plane.decisions.task_states import (
    REMOVE,
    End,
    OrderRow,
    TaskState,
    against_cancelling,
    against_retrying,
    end_of,
)
from control_plane.decisions.tasks import Task
from control_plane.handle import Command, Decision, Transaction
from control_plane.histories import allocation_history, task_history
from control_plane.identity.sessions import supported_task_types
from control_plane.origin import Origin
from control_plane.processes.allocation import newest_order_of
from control_plane.work import task_rows
from control_plane.work.spooled_reports import has_spooled_reports
from control_plane.work.tables import task
from events.allocations import AllocationFact
from events.envelope import Recorded
from events.facts import Reason
from events.ledger.append import Change
from events.tasks import TaskFact, TaskRequested
from events.values import AllocationId, NodeId, SlotId, node_of, stream_of_allocation, stream_of_task
from read_models import nodes, slots
from tasks.catalogue import CATALOGUE


def unknown_task(task_id: object) -> UnknownName:
    """Return the refusal of an unknown task id."""
    return UnknownName(Objection("unknown_task", f"there is no task {task_id}"))


def request_task(
    task_id: UUID,
    kind: str,
    node: NodeId,
    slot: SlotId | None,
    origin: Origin,
    *,
    render: Callable[[TaskRequested, datetime], str],
) -> Command:
    """Request one inspection or repair of a node; `render` builds the JSON answer from the recorded fact and the time.

    Raises `UnknownName`, and `Conflict` with every reason why the task cannot be requested.
    """

    async def command(transaction: Transaction) -> Decision:
        conn = transaction.conn
        if await nodes.find(conn, node) is None:
            raise UnknownName(Objection("unknown_node", f"no node is named {node!r}", "/node_id"))
        allocation = None if slot is None else await _allocation_of(conn, slot)
        history = () if allocation is None else await allocation_history(conn, allocation)
        order = None if slot is None else newest_order_of(history, slot)
        request = TaskRequested(task_id, kind, node, slot, allocation)
        fact = deciding.ask(request, order, await supported_task_types(conn, node), CATALOGUE[kind])
        cause = (origin.within(history[0].cause) if history else origin).at(transaction.now)
        answer = render(fact, transaction.now)
        return Decision((Change(stream_of_task(task_id), 0, (fact,)),), cause, answer)

    return command


async def _allocation_of(conn: AsyncConnection, slot: SlotId) -> AllocationId | None:
    row = (await slots.locked(conn, [slot])).get(slot)
    if row is None:
        raise UnknownName(
            Objection("unknown_slot", f"there is no slot {slot}: its node has not reported it", "/slot_id")
        )
    return row.allocation_id


def cancel_task(task_id: UUID, origin: Origin) -> Command:
    """Cancel a task, or the bring-up that an allocation's order requests. Raises `UnknownName` and `Conflict`."""

    async def command(transaction: Transaction) -> Decision:
        if history := await task_history(transaction.conn, task_id):
            newest = await task_rows.newest_try(transaction.conn, task_id)
            state = _state(history)
            # A try that was sent may be on the node, whatever became of it since.
            never_sent = newest is not None and newest.attempt == state.attempt and newest.sends == 0
            return await _requested(
                transaction, history, deciding.cancel(state, never_sent=never_sent), origin
            )
        return await _cancel_order(transaction, await _order_row(transaction.conn, task_id), origin)

    return command


def retry_task(task_id: UUID, origin: Origin) -> Command:
    """Retry a task that failed. Raises `UnknownName` and `Conflict`."""

    async def command(transaction: Transaction) -> Decision:
        if history := await task_history(transaction.conn, task_id):
            return await _requested(transaction, history, deciding.retry(_state(history)), origin)
        return await _retry_order(transaction, await _order_row(transaction.conn, task_id), origin)

    return command


def record_withdrawal(task_id: UUID, attempt: int, origin: Origin) -> Command:
    """Record that a cancelled attempt of a task was removed from its node's queue before the node fetched it."""

    async def command(transaction: Transaction) -> Decision:
        history = await task_history(transaction.conn, task_id)
        return await _requested(transaction, history, deciding.withdrawn(_state(history), attempt), origin)

    return command


def time_out_task(task_id: UUID, *, unreachable_after: timedelta) -> Command:
    """End an attempt of a task that timed out, unless its node is reachable and still has reports to deliver, which may
    contain the result. The recorded cause is the fact that set the deadline.
    """

    async def command(transaction: Transaction) -> Decision:
        history = await task_history(transaction.conn, task_id)
        state = _state(history)
        facts = deciding.time_out(state, transaction.now)
        if facts and await has_spooled_reports(transaction.conn, [state.asked.node_id], unreachable_after):
            facts = ()
        cause = history[-1].leads_to(actor="process:task", reason="deadline", observed_at=transaction.now)
        return await changed(transaction, history, facts, Decision((), cause))

    return command


def _state(history: tuple[Recorded[TaskFact], ...]) -> Task:
    state = deciding.fold(history)
    assert state is not None, "the stream of a task begins with its request"
    return state


async def _requested(
    transaction: Transaction,
    history: tuple[Recorded[TaskFact], ...],
    facts: tuple[TaskFact, ...],
    origin: Origin,
) -> Decision:
    """Return the outcome of a caller's command on a task, which appends `facts` to the task's stream."""
    return await changed(
        transaction, history, facts, Decision((), origin.within(history[0].cause).at(transaction.now))
    )


async def changed(
    transaction: Transaction,
    history: tuple[Recorded[TaskFact], ...],
    facts: tuple[TaskFact, ...],
    decision: Decision,
) -> Decision:
    """Add facts about a task to a command's outcome (`decision`). If such a fact ends an attempt of the task, also end
    the attempt's rows in `work.task`.
    """
    if not facts:
        return decision
    request = history[0].fact
    for fact in facts:
        if (end := end_of(fact)) is not None:
            await task_rows.end_tries(transaction.conn, request.task_id, end, transaction.now)
    change = Change(stream_of_task(request.task_id), history[-1].version, facts)
    return Decision((change, *decision.changes), decision.cause, decision.answer)


async def _order_row(conn: AsyncConnection, task_id: UUID) -> OrderRow:
    columns = task.c.order_id, task.c.kind, task.c.state, task.c.slot_id, task.c.allocation_id
    query = sa.select(*columns).where(task.c.order_id == task_id, task.c.task_id.is_(None))
    if (row := (await conn.execute(query)).one_or_none()) is None:
        raise unknown_task(task_id)
    state = msgspec.convert(row.state, TaskState)
    return OrderRow(row.order_id, row.kind, state, SlotId(row.slot_id), AllocationId(row.allocation_id))


async def _cancel_order(transaction: Transaction, row: OrderRow, origin: Origin) -> Decision:
    if against := [*against_cancelling(row)]:
        raise Conflict(*against)
    loaded = await load(transaction.conn, row.allocation_id)
    reason = Reason(deciding.CANCELLED, f"the work on {row.slot_id} was cancelled by {origin.actor}")
    changes = loaded.changes(life.cancel(loaded.state, reason))
    await task_rows.end(
        transaction.conn, node_of(row.slot_id), row.order_id, End("cancelled", reason), transaction.now
    )
    return Decision(changes, origin.within(loaded.history[0].cause).at(transaction.now))


async def _retry_order(transaction: Transaction, row: OrderRow, origin: Origin) -> Decision:
    loaded = await load(transaction.conn, row.allocation_id)
    against = [*against_retrying(row)]
    facts: tuple[AllocationFact, ...] = ()
    if row.kind == REMOVE:
        try:
            facts = life.retry_removal(loaded.state, row.slot_id)
        except Conflict as conflict:
            against += conflict.objections
    if against:
        raise Conflict(*against)
    stream = stream_of_allocation(row.allocation_id)
    return Decision(
        (Change(stream, loaded.history[-1].version, facts),),
        origin.within(loaded.history[0].cause).at(transaction.now),
    )
