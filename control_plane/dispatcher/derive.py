"""Derivation of what is due for a stream: the only place where a process is registered.

A process is a function from a stream's facts to what is due, registered in `PROCESSES` under the first word of its
streams' names. It is evaluated when a fact of such a stream becomes final and when a timer that it set expires. A
process that needs the facts of a second stream names that stream, and reads its facts at the time of the evaluation.

An evaluation never raises for a defect of its own stream: that stream is parked with its error, and all others go on.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final, assert_never, cast
from uuid import UUID

import structlog

from control_plane.commands.allocations import expire_lease, miss_deadline
from control_plane.commands.tasks import time_out_task
from control_plane.handle import Command
from control_plane.histories import History
from control_plane.processes import allocation, tasks
from control_plane.processes.allocation import Expire, MissDeadline, Wait, newest_order_of
from control_plane.processes.tasks import TimeOut, Try
from events.allocations import AllocationFact
from events.envelope import Recorded
from events.facts import Fact
from events.ledger.store import refuse_unreadable
from events.tasks import TaskFact, TaskRequested
from events.values import AllocationId, NodeId, SlotId, StreamId, stream_of_allocation
from tasks.operations import NodeVerify, OperationCancel
from tasks.orders import Order, Token
from tasks.wire import refuse_too_large

log = structlog.get_logger()
RETRY_PARKED_AFTER: Final = timedelta(seconds=30)
"""Time after which a parked stream is evaluated again."""
TimedDecision = MissDeadline | Expire | TimeOut
Due = allocation.Due | tasks.Due
# Built once: a union type written at the place of use is built at every use.
_ORDERS: Final = (Order, Try)
_TIMED_DECISIONS: Final = (MissDeadline, Expire, TimeOut)


@dataclass(frozen=True, slots=True)
class Process:
    """The rules for one kind of stream.

    `due` takes the stream's history, the history of the stream that `second_stream` names (empty if there is none) and
    the current time. `command` builds the command for a decision that only time triggers; its last argument is the time
    without heartbeat after which a node counts as unreachable.
    """

    due: Callable[[History, History, datetime], tuple[Due, ...]]
    command: Callable[[StreamId, TimedDecision, timedelta], Command]
    second_stream: Callable[[History], StreamId | None] = lambda _history: None
    final_state: Callable[[History], str | None] = lambda _history: None
    """Return the state in which rows that are still open end, where no newer order ends them."""


def _allocation_due(history: History, _other: History, now: datetime) -> tuple[Due, ...]:
    return allocation.due(cast(Sequence[Recorded[AllocationFact]], history), now)


def _timed_allocation_command(
    stream: StreamId, decision: TimedDecision, unreachable_after: timedelta
) -> Command:
    name = AllocationId(stream.removeprefix("allocation-"))
    match decision:
        case MissDeadline():
            return miss_deadline(name, unreachable_after=unreachable_after)
        case Expire():
            return expire_lease(name)
        case TimeOut():
            raise AssertionError("an allocation has no timeout that ends it as a task")
        case _:
            assert_never(decision)


def _task_due(history: History, other: History, now: datetime) -> tuple[Due, ...]:
    request = _request(history)
    slot = None if request is None else request.slot_id
    desired = None if slot is None else newest_order_of(cast(Sequence[Recorded[AllocationFact]], other), slot)
    return tasks.due(cast(Sequence[Recorded[TaskFact]], history), now, desired)


def _timed_task_command(stream: StreamId, _decision: TimedDecision, unreachable_after: timedelta) -> Command:
    return time_out_task(UUID(stream.removeprefix("task-")), unreachable_after=unreachable_after)


def _allocation_stream(history: History) -> StreamId | None:
    request = _request(history)
    return (
        None
        if request is None or request.allocation_id is None
        else stream_of_allocation(request.allocation_id)
    )


def _request(history: History) -> TaskRequested | None:
    # A stream with an invalid first fact is left to the evaluation, which parks it.
    return next((each.fact for each in history[:1] if isinstance(each.fact, TaskRequested)), None)


def _final_state(history: History) -> str | None:
    return tasks.over(cast(Sequence[Recorded[TaskFact]], history))


PROCESSES: Final[Mapping[str, Process]] = MappingProxyType(
    {
        "allocation": Process(_allocation_due, _timed_allocation_command),
        "task": Process(_task_due, _timed_task_command, _allocation_stream, _final_state),
    }
)
"""The process of each kind of stream, by the first word of the stream's name."""


@dataclass(frozen=True, slots=True)
class Task:
    """A row of `work.task`. Only an order has a fence token; it supersedes earlier orders of its slot."""

    order_id: UUID
    node_id: NodeId
    kind: str
    text: str
    slot_id: SlotId | None = None
    allocation_id: AllocationId | None = None
    token: Token | None = None
    task_id: UUID | None = None
    attempt: int | None = None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The evaluation of a stream: its tasks, its next timer, the command that time alone triggers, or its error."""

    stream: StreamId
    tasks: tuple[Task, ...] = field(default=())
    due_at: datetime | None = None
    command: Command | None = None
    error: str | None = None
    final_state: str | None = None
    """The final state of the stream's open rows, or None while the stream goes on."""


def facts_by_stream(batch: Iterable[Recorded[Fact]]) -> dict[StreamId, list[Recorded[Fact]]]:
    """Return the facts of the batch that belong to a stream with a process, by stream, in ledger order."""
    found: dict[StreamId, list[Recorded[Fact]]] = {}
    for each in batch:
        if _kind(each.stream) in PROCESSES:
            found.setdefault(each.stream, []).append(each)
    return found


def second_stream(stream: StreamId, history: History) -> StreamId | None:
    """Return the name of the second stream that is needed to evaluate this one, or None."""
    return PROCESSES[_kind(stream)].second_stream(history)


def evaluate(
    stream: StreamId, history: History, other: History, now: datetime, *, unreachable_after: timedelta
) -> Evaluation:
    """Return what is due for a stream according to its process; `other` is the history of its second stream."""
    try:
        process = PROCESSES[_kind(stream)]
        found_due = process.due(refuse_unreadable(history), refuse_unreadable(other), now)
        return Evaluation(
            stream,
            tuple([_task(each) for each in found_due if isinstance(each, _ORDERS)]),
            _next_due(found_due, now),
            _command(process, stream, found_due, unreachable_after),
            final_state=process.final_state(history),
        )
    except Exception as error:  # a defect of one stream must not stop the others
        log.exception("stream_parked", stream=stream)
        return parked(stream, now, error)


def parked(stream: StreamId, now: datetime, error: Exception) -> Evaluation:
    """Return the evaluation of a stream that failed: it is evaluated again after `RETRY_PARKED_AFTER`."""
    return Evaluation(stream, due_at=now + RETRY_PARKED_AFTER, error=f"{type(error).__name__}: {error}")


def _kind(stream: StreamId) -> str:
    return stream.partition("-")[0]


def _task(order: Order | Try) -> Task:
    """Return the row of an order or a try. Raises `OrderTooLarge` and `NotInCatalogue`: such a task must not reach the
    task sender, which serves all nodes.
    """
    if isinstance(order, Try):
        return _operation(order)
    text, kind = order.model_dump_json(), order.body.kind
    refuse_too_large(order.order_id, kind, text)
    return Task(order.order_id, order.node_id, kind, text, order.slot_id, order.allocation_id, order.token)


def _operation(tried: Try) -> Task:
    operation, body = tried.operation, tried.operation.body
    text = operation.model_dump_json()
    refuse_too_large(operation.operation_id, body.kind, text)
    desired = None if isinstance(body, NodeVerify | OperationCancel) else body.order
    return Task(
        operation.operation_id,
        operation.node_id,
        body.kind,
        text,
        None if desired is None else desired.slot_id,
        None if desired is None else desired.allocation_id,
        task_id=operation.task_id,
        attempt=tried.attempt,
    )


def _next_due(found_due: Iterable[Due], now: datetime) -> datetime | None:
    """Return the time of the next evaluation if no event causes an earlier one."""
    due_times: list[datetime] = []
    for each in found_due:
        match each:
            case Order() | Try():
                pass
            case Wait(until=until):
                due_times += [] if until is None else [until]
            case MissDeadline() | Expire() | TimeOut():
                due_times.append(now)
            case _:
                assert_never(each)
    return min(due_times, default=None)


def _command(
    process: Process, stream: StreamId, found_due: Iterable[Due], unreachable_after: timedelta
) -> Command | None:
    timed = (each for each in found_due if isinstance(each, _TIMED_DECISIONS))
    return next((process.command(stream, each, unreachable_after) for each in timed), None)
