"""What is due next for a task that an admin asked for, derived from its own history and the slot's newest order.

Each try is an operation whose id follows from the task and the try's number, so whoever asks twice gets the same one. A
try that failed in passing is followed by the next after a pause that doubles. Every try has a deadline: when it can no
longer be begun, and could no longer be running if it had been.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, assert_never
from uuid import UUID, uuid5

from pydantic import TypeAdapter

from control_plane.decisions.tasks import Cancelled, Cancelling, Failed, Succeeded, Trying, fold, state_name
from control_plane.processes.allocation import Wait
from events.envelope import Recorded
from events.tasks import TaskCancelAsked, TaskFact
from tasks.catalogue import CATALOGUE
from tasks.operations import Operation, OperationBody, OperationCancel
from tasks.orders import Order

_PAUSE: Final = timedelta(seconds=2)
_BODY: Final[TypeAdapter[OperationBody]] = TypeAdapter(OperationBody)


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Command: the deadline of the task's try has passed."""


@dataclass(frozen=True, slots=True)
class Try:
    """The operation that a try is, or that stops it; `attempt` counts tries from 1."""

    operation: Operation
    attempt: int


Due = Try | Wait | GiveUp


def due(history: Sequence[Recorded[TaskFact]], now: datetime, wish: Order | None) -> tuple[Due, ...]:
    """The operation that must be carried out, what is waited for, or the command that is due now.

    `wish` is the newest order of the task's slot, where it is about one.
    """
    state = fold(history)
    match state:
        case None | Succeeded() | Failed() | Cancelled():
            return ()
        case Trying() if now < begins(state):
            return (Wait("the next try", begins(state)),)
        case Trying():
            if deadline_of(state) <= now:
                return (GiveUp(),)
            return _try(history, state, wish), Wait("the node's answer", deadline_of(state))
        case Cancelling(of=trying):
            if deadline_of(trying) <= now:
                return (GiveUp(),)
            return _stop(history, trying), Wait("the node to stop", deadline_of(trying))
        case _:
            assert_never(state)


def begins(state: Trying) -> datetime:
    """When the try is sent at the earliest."""
    tried = state.attempt - state.first
    return state.since + (_PAUSE * 2 ** (tried - 1) if tried else timedelta())


def deadline_of(state: Trying) -> datetime:
    """After this the try cannot be begun, and would have been stopped."""
    bounds = CATALOGUE[state.asked.kind].bounds
    return begins(state) + bounds.maximum_age + bounds.time_limit


def operation_id(task: UUID, attempt: int) -> UUID:
    """The name of a try."""
    return uuid5(task, f"try {attempt}")


def _try(history: Sequence[Recorded[TaskFact]], state: Trying, wish: Order | None) -> Try:
    wanted = next(each for each in reversed(history) if not isinstance(each.fact, TaskCancelAsked))
    kind = state.asked.kind
    body = {"kind": kind} if wish is None else {"kind": kind, "wish": wish}
    identity = operation_id(state.asked.task_id, state.attempt)
    return _operation(identity, wanted, state, _BODY.validate_python(body))


def _stop(history: Sequence[Recorded[TaskFact]], state: Trying) -> Try:
    wanted = next(each for each in reversed(history) if isinstance(each.fact, TaskCancelAsked))
    target = operation_id(state.asked.task_id, state.attempt)
    return _operation(uuid5(target, "stop"), wanted, state, OperationCancel(target=target))


def _operation(identity: UUID, wanted: Recorded[TaskFact], state: Trying, body: OperationBody) -> Try:
    operation = Operation(
        operation_id=identity,
        task_id=state.asked.task_id,
        node_id=state.asked.node_id,
        issued_at=wanted.recorded_at,
        correlation_id=wanted.cause.correlation_id,
        causation_id=wanted.event_id,
        trace_context=wanted.cause.trace_context,
        body=body,
    )
    return Try(operation, state.attempt)


def over(history: Sequence[Recorded[TaskFact]]) -> str | None:
    """The word for a task that is at its end; None while it is not."""
    state = fold(history)
    return None if state is None or isinstance(state, Trying | Cancelling) else state_name(state)
