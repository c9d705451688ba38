"""What is due for a stream: the one place where a process is plugged in.

A process is a function from a stream's facts to what is due, and a line in `PROCESSES` under the first word of its
streams' names. It is asked whenever a fact of such a stream is final, and when a moment comes that it named. One that
needs a second stream's facts names that stream, by its own; they are read as they are at the moment of the look.

A look never raises for what is wrong with its own stream: such a stream is parked with its error, and all others go on.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final, assert_never, cast
from uuid import UUID

import structlog

from control_plane.commands.allocations import expire_lease, miss_deadline
from control_plane.commands.tasks import give_up_task
from control_plane.handle import Command
from control_plane.histories import History
from control_plane.processes import allocation, tasks
from control_plane.processes.allocation import Expire, MissDeadline, Wait, wish_of
from control_plane.processes.tasks import GiveUp, Try
from events.allocations import AllocationFact
from events.envelope import Recorded
from events.facts import Fact
from events.store import refuse_unreadable
from events.tasks import TaskAsked, TaskFact
from events.values import AllocationId, NodeId, SlotId, StreamId, stream_of_allocation
from tasks.operations import NodeVerify, OperationCancel
from tasks.orders import Order, Token
from tasks.wire import refuse_too_large

log = structlog.get_logger()
LOOK_AGAIN: Final = timedelta(seconds=30)
"""After which a parked stream is looked at again."""
ByTheClock = MissDeadline | Expire | GiveUp
Due = allocation.Due | tasks.Due
# Made once: a union that is written where it is used is made anew at each use.
_ORDERS: Final = (Order, Try)
_BY_THE_CLOCK: Final = (MissDeadline, Expire, GiveUp)


@dataclass(frozen=True, slots=True)
class Process:
    """How one kind of stream goes on.

    `due` is told the stream's history, that of the stream `beside` it (empty when there is none) and the time;
    `command` makes the command for what time alone decides, told after how long a node counts as silent.
    """

    due: Callable[[History, History, datetime], tuple[Due, ...]]
    command: Callable[[StreamId, ByTheClock, timedelta], Command]
    beside: Callable[[History], StreamId | None] = lambda _history: None
    over: Callable[[History], str | None] = lambda _history: None
    """The state in which rows end that are still open, where no newer order ends them."""


def _allocation(history: History, _beside: History, now: datetime) -> tuple[Due, ...]:
    return allocation.due(cast(Sequence[Recorded[AllocationFact]], history), now)


def _allocation_by_the_clock(stream: StreamId, what: ByTheClock, silent_after: timedelta) -> Command:
    name = AllocationId(stream.removeprefix("allocation-"))
    match what:
        case MissDeadline():
            return miss_deadline(name, silent_after=silent_after)
        case Expire():
            return expire_lease(name)
        case GiveUp():
            raise AssertionError("an allocation is not given up")
        case _:
            assert_never(what)


def _asked(history: History, beside: History, now: datetime) -> tuple[Due, ...]:
    asked = _asked_for(history)
    slot = None if asked is None else asked.slot_id
    wish = None if slot is None else wish_of(cast(Sequence[Recorded[AllocationFact]], beside), slot)
    return tasks.due(cast(Sequence[Recorded[TaskFact]], history), now, wish)


def _asked_by_the_clock(stream: StreamId, _what: ByTheClock, silent_after: timedelta) -> Command:
    return give_up_task(UUID(stream.removeprefix("task-")), silent_after=silent_after)


def _holder(history: History) -> StreamId | None:
    asked = _asked_for(history)
    return None if asked is None or asked.allocation_id is None else stream_of_allocation(asked.allocation_id)


def _asked_for(history: History) -> TaskAsked | None:
    # Whatever a stream begins with that makes no sense is for the look to say, which parks it.
    return next((each.fact for each in history[:1] if isinstance(each.fact, TaskAsked)), None)


def _over(history: History) -> str | None:
    return tasks.over(cast(Sequence[Recorded[TaskFact]], history))


PROCESSES: Final[Mapping[str, Process]] = MappingProxyType(
    {
        "allocation": Process(_allocation, _allocation_by_the_clock),
        "task": Process(_asked, _asked_by_the_clock, _holder, _over),
    }
)
"""By the first word of a stream's name."""


@dataclass(frozen=True, slots=True)
class Task:
    """What becomes a row of `work.task`. Only a wish has a fence token, and ends what its slot was told before."""

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
class Looked:
    """What a look at a stream found: its orders, when to look again, what time alone decides now, or its error."""

    stream: StreamId
    tasks: tuple[Task, ...] = field(default=())
    moment: datetime | None = None
    command: Command | None = None
    error: str | None = None
    over: str | None = None
    """The state that it came to, where it has one that ends its rows."""


def concerned(batch: Iterable[Recorded[Fact]]) -> dict[StreamId, list[Recorded[Fact]]]:
    """The batch's facts of streams that have a process, by stream, in the log's order."""
    found: dict[StreamId, list[Recorded[Fact]]] = {}
    for each in batch:
        if _kind(each.stream) in PROCESSES:
            found.setdefault(each.stream, []).append(each)
    return found


def beside(stream: StreamId, history: History) -> StreamId | None:
    """The other stream that is to be read for a look at this one."""
    return PROCESSES[_kind(stream)].beside(history)


def look(
    stream: StreamId, history: History, other: History, now: datetime, *, silent_after: timedelta
) -> Looked:
    """Ask a stream's process what is due; `other` is the history of the stream beside it."""
    try:
        process = PROCESSES[_kind(stream)]
        what_is_due = process.due(refuse_unreadable(history), refuse_unreadable(other), now)
        return Looked(
            stream,
            tuple([_task(each) for each in what_is_due if isinstance(each, _ORDERS)]),
            _moment(what_is_due, now),
            _command(process, stream, what_is_due, silent_after),
            over=process.over(history),
        )
    except Exception as error:  # whatever is wrong with one stream must not stop the others
        log.exception("stream_parked", stream=stream)
        return parked(stream, now, error)


def parked(stream: StreamId, now: datetime, error: Exception) -> Looked:
    """A stream that is left alone for a while."""
    return Looked(stream, moment=now + LOOK_AGAIN, error=f"{type(error).__name__}: {error}")


def _kind(stream: StreamId) -> str:
    return stream.partition("-")[0]


def _task(order: Order | Try) -> Task:
    """Raises `OrderTooLarge` and `NotInCatalogue`: it must not reach the sweeper, who sends for all nodes."""
    if isinstance(order, Try):
        return _operation(order)
    text, kind = order.model_dump_json(), order.body.kind
    refuse_too_large(order.order_id, kind, text)
    return Task(order.order_id, order.node_id, kind, text, order.slot_id, order.allocation_id, order.token)


def _operation(tried: Try) -> Task:
    operation, body = tried.operation, tried.operation.body
    text = operation.model_dump_json()
    refuse_too_large(operation.operation_id, body.kind, text)
    wish = None if isinstance(body, NodeVerify | OperationCancel) else body.wish
    return Task(
        operation.operation_id,
        operation.node_id,
        body.kind,
        text,
        None if wish is None else wish.slot_id,
        None if wish is None else wish.allocation_id,
        task_id=operation.task_id,
        attempt=tried.attempt,
    )


def _moment(what_is_due: Iterable[Due], now: datetime) -> datetime | None:
    """When to look again although nothing happened."""
    moments: list[datetime] = []
    for each in what_is_due:
        match each:
            case Order() | Try():
                pass
            case Wait(until=until):
                moments += [] if until is None else [until]
            case MissDeadline() | Expire() | GiveUp():
                moments.append(now)
            case _:
                assert_never(each)
    return min(moments, default=None)


def _command(
    process: Process, stream: StreamId, what_is_due: Iterable[Due], silent_after: timedelta
) -> Command | None:
    by_the_clock = (each for each in what_is_due if isinstance(each, _BY_THE_CLOCK))
    return next((process.command(stream, each, silent_after) for each in by_the_clock), None)
