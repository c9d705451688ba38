"""Derive the due operation or command of a requested task from its history and the newest order of its slot.

Each attempt is an operation with an id that follows from the task and the number of the attempt, so deriving it twice
yields the same operation. After an attempt that failed temporarily, the next one follows after a pause, which doubles
each time. Every attempt has a deadline, after which it can neither begin nor still be running.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, assert_never
from uuid import UUID, uuid5

from pydantic import TypeAdapter

from control_plane.decisions.tasks import (
    Cancelled,
    Cancelling,
    Failed,
    Succeeded,
    Trying,
    begins,
    deadline_of,
    fold,
    state_name,
)
from control_plane.processes.allocation import Wait
from events.envelope import Recorded
from events.tasks import TaskCancelRequested, TaskFact
from events.traces import continued
from tasks.operations import Operation, OperationBody, OperationCancel
from tasks.orders import Order

_BODY: Final[TypeAdapter[OperationBody]] = TypeAdapter(OperationBody)


@dataclass(frozen=True, slots=True)
class TimeOut:
    """Due command to end a task, because the deadline of its current attempt has passed."""


@dataclass(frozen=True, slots=True)
class Try:
    """The operation that executes an attempt of a task, or that cancels the attempt. `attempt` counts from 1."""

    operation: Operation
    attempt: int


Due = Try | Wait | TimeOut


def due(history: Sequence[Recorded[TaskFact]], now: datetime, order: Order | None) -> tuple[Due, ...]:
    """Return what is due for a task: its operation, the awaited event, or a command that is due now.

    `order` is the newest order of the task's slot, or None if the task is about the node.
    """
    state = fold(history)
    match state:
        case None | Succeeded() | Failed() | Cancelled():
            return ()
        case Trying() if now < begins(state):
            return (Wait("the next attempt of the task", begins(state)),)
        case Trying():
            if deadline_of(state) <= now:
                return (TimeOut(),)
            return _try(history, state, order), Wait("the node's answer", deadline_of(state))
        case Cancelling(of=trying):
            if deadline_of(trying) <= now:
                return (TimeOut(),)
            return _stop(history, trying), Wait(
                "the end of the task's cancelled attempt", deadline_of(trying)
            )
        case _:
            assert_never(state)


def operation_id(task: UUID, attempt: int) -> UUID:
    """Return the operation id of attempt number `attempt` of a task."""
    return uuid5(task, f"try {attempt}")


def _try(history: Sequence[Recorded[TaskFact]], state: Trying, order: Order | None) -> Try:
    source = next(each for each in reversed(history) if not isinstance(each.fact, TaskCancelRequested))
    kind = state.asked.kind
    body = {"kind": kind} if order is None else {"kind": kind, "order": order}
    identity = operation_id(state.asked.task_id, state.attempt)
    return _operation(identity, source, state, _BODY.validate_python(body))


def _stop(history: Sequence[Recorded[TaskFact]], state: Trying) -> Try:
    source = next(each for each in reversed(history) if isinstance(each.fact, TaskCancelRequested))
    target = operation_id(state.asked.task_id, state.attempt)
    return _operation(uuid5(target, "stop"), source, state, OperationCancel(target=target))


def _operation(identity: UUID, source: Recorded[TaskFact], state: Trying, body: OperationBody) -> Try:
    operation = Operation(
        operation_id=identity,
        task_id=state.asked.task_id,
        node_id=state.asked.node_id,
        issued_at=source.recorded_at,
        correlation_id=source.cause.correlation_id,
        causation_id=source.event_id,
        trace_context=continued(source.cause.trace_context, source.event_id),
        body=body,
    )
    return Try(operation, state.attempt)


def over(history: Sequence[Recorded[TaskFact]]) -> str | None:
    """Return the name of the task's final state, or None if the task has not ended."""
    state = fold(history)
    return None if state is None or isinstance(state, Trying | Cancelling) else state_name(state)
