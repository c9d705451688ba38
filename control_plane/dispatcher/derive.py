"""Evaluation of streams of events: which tasks, timers and commands are due. It uses the rules in `PROCESSES`.

`PROCESSES` maps the first word of a stream's name (`allocation`, `task`, `node`) to a `Process`: a function from the
facts of the stream to what is due. A stream is evaluated when a new fact of it becomes final and when its timer
expires. A process that needs the facts of a second stream names that stream, and reads its facts at the time of the
evaluation.

An evaluation never raises for a defect of its own stream: that stream is parked with its error, and all others go on.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final, Generic, Protocol, TypeVar, assert_never
from uuid import UUID

import structlog

from control_plane.commands.allocations import (
    announce_end,
    expire_lease,
    expire_wait,
    miss_deadline,
    record_overdue_release,
)
from control_plane.commands.drains import advance_drain
from control_plane.commands.tasks import time_out_task
from control_plane.handle import Command
from control_plane.histories import History, allocation_facts, node_facts, task_facts
from control_plane.processes import allocation, drain, tasks
from control_plane.processes.allocation import (
    AnnounceEnd,
    Expire,
    ExpireWait,
    MissDeadline,
    RecordOverdue,
    Wait,
    newest_order_of,
)
from control_plane.processes.drain import AdvanceDrain
from control_plane.processes.tasks import TimeOut, Try
from events.allocations import AllocationFact
from events.envelope import Recorded
from events.facts import Fact
from events.ledger.store import refuse_unreadable
from events.nodes import NodeFact
from events.orders import OrderFact
from events.slots import SlotForceReleased, SlotReleased
from events.tasks import TaskFact, TaskRequested
from events.traces import trace_id
from events.values import (
    AllocationId,
    NodeId,
    SlotId,
    StreamId,
    node_of,
    stream_of_allocation,
    stream_of_node,
)
from tasks.operations import NodeVerify, OperationCancel
from tasks.orders import Order, Token
from tasks.wire import refuse_too_large

log = structlog.get_logger()
RETRY_PARKED_AFTER: Final = timedelta(seconds=30)
"""Time after which a parked stream is evaluated again."""
Due = allocation.Due | tasks.Due | AdvanceDrain
# Built once: a union type written at the place of use is built at every use.
_ORDERS: Final = (Order, Try)
F = TypeVar("F", bound=Fact)
D = TypeVar("D", bound=Due)


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
    """What is due for a stream: its tasks, its next timer, and the command that is due because time has passed; or an
    error.
    """

    stream: StreamId
    tasks: tuple[Task, ...] = field(default=())
    due_at: datetime | None = None
    command: Command | None = None
    error: str | None = None
    lease_ends_at: datetime | None = None
    """When the lease of an allocation ends; None for another stream, and without a lease that runs."""
    final_state: str | None = None
    """The state in which the stream's open rows of `work.task` end, or None if the stream has not ended."""


@dataclass(frozen=True, slots=True)
class Timing:
    """What due times and commands depend on besides facts: the time without heartbeat after which a node counts as
    unreachable, the times before the end of a lease at which the end is announced, and since when the dispatcher has
    been running without a pause (None: always).
    """

    unreachable_after: timedelta
    lease_leads: tuple[timedelta, ...] = ()
    up_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Process(Generic[F, D]):
    """The rules from which the dispatcher derives the due tasks and timers of one kind of stream.

    `F` is the type of the stream's facts, `D` the type of the results that the rules return.
    """

    facts: Callable[[History], tuple[Recorded[F], ...]]
    """Function that returns the history of a stream with the type of its facts. Raises `WrongStream`."""
    due: Callable[[tuple[Recorded[F], ...], History, datetime, Timing], tuple[D, ...]]
    """Function that returns what is due for a stream. Its arguments are the history of the stream, the history of the
    stream that `second_stream` returns (empty if there is none), the current time, and the timing of the dispatcher.
    """
    command: Callable[[StreamId, D, timedelta], Command | None]
    """Function that returns the command to execute for one result of `due`, or None if the result does not require a
    command (an order, an operation or a wait). The last argument is the time without heartbeat after which a node
    counts as unreachable.
    """
    second_stream: Callable[[History], StreamId | None] = lambda _history: None
    final_state: Callable[[tuple[Recorded[F], ...]], str | None] = lambda _history: None
    """Function that returns the state in which the open rows of an ended stream end; None if the stream has not ended,
    and for a kind of stream in which only newer orders end earlier ones.
    """

    lease_ends_at: Callable[[tuple[Recorded[F], ...]], datetime | None] = lambda _history: None
    """Function that returns when the lease of an allocation ends; None if the stream is none, or has no lease that
    runs."""
    concerns: Callable[[Fact], bool] = lambda _fact: True
    """Function that returns whether a new fact can change what is due; the stream is not evaluated for other facts."""

    def evaluate(
        self, stream: StreamId, history: History, other: History, now: datetime, timing: Timing
    ) -> Evaluation:
        """Return the due tasks, timer and command of a stream. Raises an exception for a defect of the stream."""
        facts = self.facts(refuse_unreadable(history))
        found_due = self.due(facts, refuse_unreadable(other), now, timing)
        commands = (self.command(stream, each, timing.unreachable_after) for each in found_due)
        return Evaluation(
            stream,
            tuple([_task(each) for each in found_due if isinstance(each, _ORDERS)]),
            _next_due(found_due, now),
            next((each for each in commands if each is not None), None),
            lease_ends_at=self.lease_ends_at(facts),
            final_state=self.final_state(facts),
        )


class AnyProcess(Protocol):
    """Interface of a `Process` without its type parameters, so that `PROCESSES` can contain every kind."""

    @property
    def second_stream(self) -> Callable[[History], StreamId | None]: ...

    @property
    def concerns(self) -> Callable[[Fact], bool]: ...

    def evaluate(
        self, stream: StreamId, history: History, other: History, now: datetime, timing: Timing
    ) -> Evaluation: ...


def _allocation_due(
    history: tuple[Recorded[AllocationFact], ...], _other: History, now: datetime, timing: Timing
) -> tuple[allocation.Due, ...]:
    return allocation.due(history, now, timing.lease_leads, timing.up_since)


def _timed_allocation_command(
    stream: StreamId, due: allocation.Due, unreachable_after: timedelta
) -> Command | None:
    name = AllocationId(stream.removeprefix("allocation-"))
    match due:
        case MissDeadline():
            return miss_deadline(name, unreachable_after=unreachable_after)
        case ExpireWait():
            return expire_wait(name)
        case Expire():
            return expire_lease(name)
        case AnnounceEnd(lead=lead):
            return announce_end(name, lead)
        case RecordOverdue(deadline=deadline):
            return record_overdue_release(name, deadline, unreachable_after=unreachable_after)
        case Order() | Wait():
            return None
        case _:
            assert_never(due)


def _task_due(
    history: tuple[Recorded[TaskFact], ...], other: History, now: datetime, _timing: Timing
) -> tuple[tasks.Due, ...]:
    request = _request(history)
    slot = None if request is None else request.slot_id
    return tasks.due(history, now, None if slot is None else newest_order_of(allocation_facts(other), slot))


def _timed_task_command(stream: StreamId, due: tasks.Due, unreachable_after: timedelta) -> Command | None:
    match due:
        case TimeOut():
            return time_out_task(UUID(stream.removeprefix("task-")), unreachable_after=unreachable_after)
        case Try() | Wait():
            return None
        case _:
            assert_never(due)


def _drain_due(
    history: tuple[Recorded[NodeFact | OrderFact], ...], _other: History, _now: datetime, _timing: Timing
) -> tuple[AdvanceDrain, ...]:
    return drain.due(history)


def _drain_command(_stream: StreamId, due: AdvanceDrain, unreachable_after: timedelta) -> Command:
    return advance_drain(due.source, due.drain, unreachable_after=unreachable_after)


def _allocation_stream(history: History) -> StreamId | None:
    request = _request(history)
    return (
        None
        if request is None or request.allocation_id is None
        else stream_of_allocation(request.allocation_id)
    )


def _request(history: Sequence[Recorded[Fact]]) -> TaskRequested | None:
    # A stream with an invalid first fact is left to the evaluation, which parks it.
    return next((each.fact for each in history[:1] if isinstance(each.fact, TaskRequested)), None)


PROCESSES: Final[Mapping[str, AnyProcess]] = MappingProxyType(
    {
        "allocation": Process(
            allocation_facts,
            _allocation_due,
            _timed_allocation_command,
            lease_ends_at=allocation.lease_ends_at,
        ),
        "task": Process(task_facts, _task_due, _timed_task_command, _allocation_stream, tasks.over),
        "node": Process(node_facts, _drain_due, _drain_command, concerns=drain.concerns_drain),
    }
)
"""The process of each kind of stream, by the first word of the stream's name."""


def facts_by_stream(batch: Iterable[Recorded[Fact]]) -> dict[StreamId, list[Recorded[Fact]]]:
    """Return the facts of the batch that concern a process, by stream and in ledger order."""
    found: dict[StreamId, list[Recorded[Fact]]] = {}
    for each in batch:
        process = PROCESSES.get(_kind(each.stream))
        if process is not None and process.concerns(each.fact):
            found.setdefault(each.stream, []).append(each)
    return found


def awaiting_emptied_slots(batch: Iterable[Recorded[Fact]]) -> list[StreamId]:
    """Return the streams of the nodes with slots that became empty in the batch, for which a drain may wait."""
    emptied = (each.fact.slot_id for each in batch if isinstance(each.fact, SlotReleased | SlotForceReleased))
    return sorted({stream_of_node(node_of(slot)) for slot in emptied})


def second_stream(stream: StreamId, history: History) -> StreamId | None:
    """Return the name of a second stream with facts that the evaluation of this stream needs, or None."""
    return PROCESSES[_kind(stream)].second_stream(history)


def evaluate(stream: StreamId, history: History, other: History, now: datetime, timing: Timing) -> Evaluation:
    """Return the due tasks, timer and command of a stream, by the rules in `PROCESSES`; park the stream if they fail.

    `other` is the history of the second stream that the rules read, if any.
    """
    try:
        return PROCESSES[_kind(stream)].evaluate(stream, history, other, now, timing)
    except Exception as error:  # a defect of one stream must not stop the others
        newest = history[-1].cause.trace_context if history else None
        log.exception("event_stream_parked_after_error", stream=stream, trace_id=trace_id(newest))
        return parked(stream, now, error)


def parked(stream: StreamId, now: datetime, error: Exception) -> Evaluation:
    """Return the result for a stream that cannot be evaluated: the error, and a retry after `RETRY_PARKED_AFTER`."""
    return Evaluation(stream, due_at=now + RETRY_PARKED_AFTER, error=f"{type(error).__name__}: {error}")


def _kind(stream: StreamId) -> str:
    return stream.partition("-")[0]


def _task(order: Order | Try) -> Task:
    """Return the `work.task` row of an order, or of one attempt of a requested operation.

    Raises `OrderTooLarge` and `NotInCatalogue`: such a task must not reach the task sender, which serves all nodes.
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
    """Return the time at which a stream is evaluated again unless an event causes an earlier evaluation. None: no
    timer.
    """
    due_times: list[datetime] = []
    for each in found_due:
        match each:
            case Order() | Try():
                pass
            case Wait(until=until):
                due_times += [] if until is None else [until]
            case (
                MissDeadline()
                | ExpireWait()
                | Expire()
                | AnnounceEnd()
                | RecordOverdue()
                | TimeOut()
                | AdvanceDrain()
            ):
                due_times.append(now)
            case _:
                assert_never(each)
    return min(due_times, default=None)
