"""Commands about tasks: ask for one, try one again, stop one, and what time does to them.

A task is one that an admin asked for, with a stream of its own, or the order of an allocation, which belongs to the
allocation's stream and goes by its order's id. What is done to either is a fact there; the rows only follow.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane import task_rows
from control_plane.commands.living import load
from control_plane.decisions import allocation as life
from control_plane.decisions import tasks as deciding
from control_plane.decisions.refusals import Conflict, Objection, UnknownName
from control_plane.decisions.tasks import Cancelling, Task, Trying
from control_plane.handle import Command, Decision, Transaction
from control_plane.histories import allocation_history, task_history
from control_plane.origin import Origin
from control_plane.processes.allocation import wish_of
from control_plane.processes.tasks import deadline_of
from control_plane.sessions import spoken
from control_plane.task_rows import End
from control_plane.telling import is_telling
from control_plane.work import OPEN, task
from events.allocations import AllocationFact
from events.append import Change
from events.envelope import Recorded
from events.facts import Reason
from events.tasks import TaskAsked, TaskFact
from events.values import AllocationId, NodeId, SlotId, stream_of_allocation, stream_of_task
from read_models import nodes, slots
from tasks.catalogue import CATALOGUE
from tasks.orders import ApplySlice, RemoveSlice, StopSlice

APPLY: Final[str] = ApplySlice.model_fields["kind"].default
STOP: Final[str] = StopSlice.model_fields["kind"].default
REMOVE: Final[str] = RemoveSlice.model_fields["kind"].default


def unknown_task(task_id: object) -> UnknownName:
    return UnknownName(Objection("unknown_task", f"there is no task {task_id}"))


def ask_task(task_id: UUID, kind: str, node: NodeId, slot: SlotId | None, origin: Origin) -> Command:
    """Have a node look or mend once. Raises `UnknownName`, and `Conflict` with every reason against it."""

    async def command(transaction: Transaction) -> Decision:
        conn = transaction.conn
        if await nodes.find(conn, node) is None:
            raise UnknownName(Objection("unknown_node", f"no node is named {node!r}", "/node_id"))
        allocation = None if slot is None else await _holder(conn, slot)
        history = () if allocation is None else await allocation_history(conn, allocation)
        wish = None if slot is None else wish_of(history, slot)
        asked = TaskAsked(task_id, kind, node, slot, allocation)
        fact = deciding.ask(asked, wish, await spoken(conn, node), CATALOGUE[kind])
        cause = (origin.within(history[0].cause) if history else origin).at(transaction.now)
        return Decision((Change(stream_of_task(task_id), 0, (fact,)),), cause, str(task_id))

    return command


async def _holder(conn: AsyncConnection, slot: SlotId) -> AllocationId | None:
    row = (await slots.locked(conn, [slot])).get(slot)
    if row is None:
        raise UnknownName(Objection("unknown_slot", f"no slot {slot} was discovered", "/slot_id"))
    return row.allocation_id


def cancel_task(task_id: UUID, origin: Origin) -> Command:
    """Stop a task, or what an allocation's order brings up. Raises `UnknownName` and `Conflict`."""

    async def command(transaction: Transaction) -> Decision:
        if history := await task_history(transaction.conn, task_id):
            newest = await task_rows.newest_try(transaction.conn, task_id)
            state = _state(history)
            # Sent once, it may be with the node, whatever became of it since.
            never_sent = newest is not None and newest.attempt == state.attempt and newest.sends == 0
            return await _asked_for(
                transaction, history, deciding.cancel(state, never_sent=never_sent), origin
            )
        return await _cancel_wish(transaction, await _wish_row(transaction.conn, task_id), origin)

    return command


def retry_task(task_id: UUID, origin: Origin) -> Command:
    """Have what came to a bad end tried again. Raises `UnknownName` and `Conflict`."""

    async def command(transaction: Transaction) -> Decision:
        if history := await task_history(transaction.conn, task_id):
            return await _asked_for(transaction, history, deciding.retry(_state(history)), origin)
        return await _retry_wish(transaction, await _wish_row(transaction.conn, task_id), origin)

    return command


def taken_back(task_id: UUID, attempt: int, origin: Origin) -> Command:
    """A try that was to be stopped was taken out of its node's queue."""

    async def command(transaction: Transaction) -> Decision:
        history = await task_history(transaction.conn, task_id)
        return await _asked_for(transaction, history, deciding.withdrawn(_state(history), attempt), origin)

    return command


def give_up_task(task_id: UUID, *, silent_after: timedelta) -> Command:
    """Give its try up, if its deadline is over, unless the answer may be among reports that wait on the node and it is
    not silent. The cause is the fact that set the time.
    """

    async def command(transaction: Transaction) -> Decision:
        history = await task_history(transaction.conn, task_id)
        state = _state(history)
        facts = _given_up(state, transaction.now)
        if facts and await is_telling(transaction.conn, [state.asked.node_id], silent_after):
            facts = ()
        cause = history[-1].leads_to(actor="process:task", why="deadline", observed_at=transaction.now)
        return await changed(transaction, history, facts, Decision((), cause))

    return command


def _given_up(state: Task, now: datetime) -> tuple[TaskFact, ...]:
    match state:
        case Trying() | Cancelling(of=Trying()):
            trying = state.of if isinstance(state, Cancelling) else state
            return deciding.give_up(state, deadline_of(trying), now)
        case _:
            return ()


def _state(history: tuple[Recorded[TaskFact], ...]) -> Task:
    state = deciding.fold(history)
    assert state is not None, "a task's stream begins with its being asked for"
    return state


async def _asked_for(
    transaction: Transaction,
    history: tuple[Recorded[TaskFact], ...],
    facts: tuple[TaskFact, ...],
    origin: Origin,
) -> Decision:
    """The decision that the facts are, asked for by a caller."""
    return await changed(
        transaction, history, facts, Decision((), origin.within(history[0].cause).at(transaction.now))
    )


async def changed(
    transaction: Transaction,
    history: tuple[Recorded[TaskFact], ...],
    facts: tuple[TaskFact, ...],
    decision: Decision,
) -> Decision:
    """Facts about a task, with the ends of its rows that they are, beside what else was decided."""
    if not facts:
        return decision
    asked = history[0].fact
    for fact in facts:
        if (how := task_rows.end_of(fact)) is not None:
            await task_rows.end_tries(transaction.conn, asked.task_id, how, transaction.now)
    change = Change(stream_of_task(asked.task_id), history[-1].version, facts)
    return Decision((change, *decision.changes), decision.cause, decision.answer)


async def _wish_row(conn: AsyncConnection, task_id: UUID) -> sa.Row[Any]:
    query = sa.select(task).where(task.c.order_id == task_id, task.c.task_id.is_(None))
    if (row := (await conn.execute(query)).one_or_none()) is None:
        raise unknown_task(task_id)
    return row


async def _cancel_wish(transaction: Transaction, row: sa.Row[Any], origin: Origin) -> Decision:
    if against := [*_against_cancelling(row)]:
        raise Conflict(*against)
    living = await load(transaction.conn, AllocationId(row.allocation_id))
    reason = Reason(deciding.CANCELLED, f"the work on {row.slot_id} was cancelled by {origin.actor}")
    changes = living.changes(life.cancel(living.state, reason))
    await task_rows.end(
        transaction.conn, row.node_id, row.order_id, End("cancelled", reason), transaction.now
    )
    return Decision(changes, origin.within(living.history[0].cause).at(transaction.now))


def _against_cancelling(row: sa.Row[Any]) -> Iterator[Objection]:
    if row.kind == REMOVE:
        yield Objection("removal_goes_on", f"slot {row.slot_id} has to be emptied; that is not cancelled")
    if row.kind == STOP:
        yield Objection("stop_goes_on", f"slot {row.slot_id} is to be off; start its allocation once it is")
    if row.state not in OPEN:
        yield Objection("task_over", f"the task is {row.state}, and nothing of it runs")


async def _retry_wish(transaction: Transaction, row: sa.Row[Any], origin: Origin) -> Decision:
    living = await load(transaction.conn, AllocationId(row.allocation_id))
    against = [*_against_retrying(row)]
    facts: tuple[AllocationFact, ...] = ()
    if row.kind == REMOVE:
        try:
            facts = life.retry_removal(living.state, SlotId(row.slot_id))
        except Conflict as conflict:
            against += conflict.objections
    if against:
        raise Conflict(*against)
    stream = stream_of_allocation(AllocationId(row.allocation_id))
    return Decision(
        (Change(stream, living.history[-1].version, facts),),
        origin.within(living.history[0].cause).at(transaction.now),
    )


def _against_retrying(row: sa.Row[Any]) -> Iterator[Objection]:
    if row.kind == APPLY:
        why = (
            f"what failed is not brought up again: ask for another allocation in place of {row.allocation_id}"
        )
        yield Objection("not_retriable", why)
    if row.kind == STOP:
        why = f"allocation {row.allocation_id} fails unless it is off in time: release it, or wait"
        yield Objection("stop_goes_on", why)
    if row.state in OPEN:
        yield Objection("task_under_way", f"the task is {row.state}, and is sent again by itself")
    if row.state == "done":
        yield Objection("task_done", "the task is done")
    if row.state == "superseded":
        yield Objection("task_superseded", f"slot {row.slot_id} was told otherwise since")
