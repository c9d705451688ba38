"""The states of a task that an admin requested, and the decisions about it.

    trying -> succeeded
      |  \\
      |   -> failed            (after its last attempt; after a transient failure, another attempt follows)
      v
    cancelling -> cancelled    (or succeeded or failed, if the node finished before it got the cancellation)

An admin may retry a task that failed or was cancelled: that begins a new round of attempts. Attempts are numbered; a
report about an attempt that is not the current one is too late and has no effect.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final, Literal, assert_never, get_args

import msgspec
from pydantic import BaseModel

from control_plane.decisions.refusals import Conflict, Malformed, Objection
from events.envelope import Recorded
from events.facts import Reason
from events.tasks import (
    TaskCancelled,
    TaskCancelRequested,
    TaskFact,
    TaskFailed,
    TaskRequested,
    TaskRetried,
    TaskSucceeded,
)
from events.values import NodeId
from tasks.catalogue import CATALOGUE, TaskType
from tasks.operations import OperationBody, OperationCancel, OperationCancelled, OperationResult
from tasks.orders import Order, RemoveSlice

_BODIES: Final[tuple[type[BaseModel], ...]] = get_args(get_args(OperationBody)[0])
REQUESTABLE: Final[Mapping[str, bool]] = MappingProxyType(
    {
        body.model_fields["kind"].default: "order" in body.model_fields
        for body in _BODIES
        if body is not OperationCancel
    }
)
"""Every kind of task that may be requested, and whether it concerns a slot (True) or a whole node (False)."""
_ORDER_KINDS: Final = ("slice.apply", "slice.stop", "slice.remove")
_PAUSE: Final = timedelta(seconds=2)
"""Pause before the second attempt of a round; it doubles before each further attempt."""
NO_ANSWER: Final = "no_answer"
CANCELLED: Final = "cancelled"
SUCCEEDED: Final = Objection("task_succeeded", "the task has succeeded and cannot be retried")
"""Reason why a task that succeeded cannot be retried."""
CANCEL: Final[str] = OperationCancel.model_fields["kind"].default


@dataclass(frozen=True, slots=True)
class Trying:
    """State of a task; its attempt number `attempt` became due at `since` and has not ended. `first` is the number of
    the first attempt since the task was requested or last retried by hand.
    """

    asked: TaskRequested
    attempt: int
    first: int
    since: datetime
    failure: Reason | None = None
    """Reason of the failure of the previous attempt."""


@dataclass(frozen=True, slots=True)
class Cancelling:
    """State of a task for which the cancellation of the current attempt is being sent to the node."""

    of: Trying

    @property
    def asked(self) -> TaskRequested:
        return self.of.asked

    @property
    def attempt(self) -> int:
        return self.of.attempt


@dataclass(frozen=True, slots=True)
class Succeeded:
    asked: TaskRequested
    attempt: int
    result: str


@dataclass(frozen=True, slots=True)
class Failed:
    asked: TaskRequested
    attempt: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class Cancelled:
    asked: TaskRequested
    attempt: int
    reason: Reason


Task = Trying | Cancelling | Succeeded | Failed | Cancelled
StateName = Literal["trying", "cancelling", "done", "expired", "poisoned", "failed", "cancelled"]
_UNFINISHED: Final[tuple[StateName, ...]] = ("trying", "cancelling")


def evolve(state: Task | None, recorded: Recorded[TaskFact]) -> Task:
    """Return the task's state after a fact. Raises `AssertionError` on a history that no command can create."""
    following = _after(state, recorded)
    assert following is not None, f"{type(recorded.fact).__name__} cannot follow {type(state).__name__}"
    return following


def _after(state: Task | None, recorded: Recorded[TaskFact]) -> Task | None:
    fact, then = recorded.fact, recorded.recorded_at
    match state, fact:
        case None, TaskRequested():
            return Trying(fact, 1, 1, then)
        case ((Trying() | Cancelling()), TaskSucceeded(attempt=attempt, result=result)):
            return Succeeded(state.asked, attempt, result)
        case Trying(attempt=attempt), TaskFailed(reason=reason, final=False):
            return replace(state, attempt=attempt + 1, since=then, failure=reason)
        case ((Trying() | Cancelling()), TaskFailed(attempt=attempt, reason=reason, final=True)):
            return Failed(state.asked, attempt, reason)
        case Trying(), TaskCancelRequested():
            return Cancelling(state)
        case Cancelling(), TaskCancelled(reason=reason):
            return Cancelled(state.asked, state.attempt, reason)
        case ((Failed() | Cancelled()), TaskRetried()):
            return Trying(state.asked, state.attempt + 1, state.attempt + 1, then, state.reason)
        case _:
            return None


def fold(history: Iterable[Recorded[TaskFact]]) -> Task | None:
    state: Task | None = None
    for recorded in history:
        state = evolve(state, recorded)
    return state


def state_name(state: Task) -> StateName:
    match state:
        case Trying():
            return "trying"
        case Cancelling():
            return "cancelling"
        case Succeeded():
            return "done"
        case Failed(reason=Reason(code=code)):
            return "expired" if code == NO_ANSWER else "poisoned" if code == "poisoned" else "failed"
        case Cancelled():
            return "cancelled"
        case _:
            assert_never(state)


def kind_requestable(kind: str) -> str:
    """Return a task kind if an admin may request tasks of this kind. Raises `Malformed` if not."""
    if kind in REQUESTABLE:
        return kind
    if kind in _ORDER_KINDS:
        reason = f"tasks of kind {kind!r} cannot be requested; create, stop, start or release an allocation instead"
        raise Malformed(Objection("not_requestable", reason, "/kind"))
    raise Malformed(
        Objection(
            "unknown_kind", f"unknown task kind {kind!r}; choose one of {', '.join(REQUESTABLE)}", "/kind"
        )
    )


def ask(
    requested: TaskRequested, newest: Order | None, supported: frozenset[str] | None, type_: TaskType
) -> TaskRequested:
    """Return the fact that a task was requested. Raises `Conflict` with every reason why it cannot be requested.

    `newest` is the newest order of the task's slot. `supported` are the features that the node's agent supports; None
    if the agent has not reported them yet.
    """
    objections = [
        *_objections_to_slot(requested, newest),
        *unsupported_by_agent(requested.node_id, supported, type_.announced, "/kind"),
    ]
    if objections:
        raise Conflict(*objections)
    return requested


def _objections_to_slot(requested: TaskRequested, newest: Order | None) -> Iterable[Objection]:
    if requested.slot_id is None:
        return
    if newest is None:
        reason = f"slot {requested.slot_id} has no desired state, because it belongs to no allocation"
        yield Objection("no_desired_state", reason, "/slot_id")
    elif requested.kind == "ingress.remove" and not isinstance(newest.body, RemoveSlice):
        reason = (
            f"slot {requested.slot_id} is allocated to {newest.allocation_id}, so its addresses and ports stay reserved;"
            " release the allocation first"
        )
        yield Objection("order_contradicts_task", reason, "/slot_id")


def unsupported_by_agent(
    node: NodeId, supported: frozenset[str] | None, announced: str, field: str | None = None
) -> Iterable[Objection]:
    """Yield an objection if a node's agent does not support the feature `announced`; none while its features are
    unknown.
    """
    if supported is not None and announced not in supported:
        reason = f"the agent on node {node} does not support {announced}; upgrade it"
        yield Objection("unsupported_by_agent", reason, field)


def done(state: Task, attempt: int, result: str) -> tuple[TaskFact, ...]:
    """Record that the node completed an attempt of a task, even if the task's cancellation was requested."""
    match state:
        case Trying() | Cancelling() if state.attempt == attempt:
            return (TaskSucceeded(state.asked.task_id, attempt, result),)
        case _:
            return ()


def reported(state: Task, kind: str, attempt: int, outcome: OperationResult | Reason) -> tuple[TaskFact, ...]:
    """Return the facts about a task that follow from the result or the failure of one of its operations of kind
    `kind`.
    """
    if kind == CANCEL:
        if isinstance(outcome, OperationCancelled):
            return stopped(state, attempt, was_running=outcome.was_running)
        return ()
    if isinstance(outcome, Reason):
        return failed(state, attempt, outcome, CATALOGUE[kind])
    if outcome.kind != kind:
        wrong = Reason(
            "wrong_result", f"the node returned a result of kind {outcome.kind} for a task of kind {kind}"
        )
        return failed(state, attempt, wrong, CATALOGUE[kind])
    return done(state, attempt, canonical(outcome))


def canonical(result: OperationResult) -> str:
    """Return an operation's result as JSON with sorted keys, which is the form that facts and rows store."""
    return msgspec.json.encode(result.model_dump(mode="json"), order="sorted").decode()


def failed(state: Task, attempt: int, reason: Reason, type_: TaskType) -> tuple[TaskFact, ...]:
    """Record a failed attempt of a task. Another attempt follows if the failure is transient and the retry limit
    allows it.
    """
    match state:
        case Trying(asked=asked, first=first) if state.attempt == attempt:
            retried = reason.code in type_.retryable and attempt - first < type_.bounds.retries
            return (TaskFailed(asked.task_id, attempt, reason, final=not retried),)
        case Cancelling(asked=asked) if state.attempt == attempt:
            if reason.code == CANCELLED:
                return (TaskCancelled(asked.task_id, reason),)
            return (TaskFailed(asked.task_id, attempt, reason, final=True),)
        case _:
            return ()


def stopped(state: Task, attempt: int, *, was_running: bool) -> tuple[TaskFact, ...]:
    """Record that a node received a cancellation. A running attempt ends later, with its own report."""
    match state:
        case Cancelling(asked=asked) if state.attempt == attempt and not was_running:
            return (
                TaskCancelled(
                    asked.task_id, Reason(CANCELLED, "the task was cancelled before the node started it")
                ),
            )
        case _:
            return ()


def begins(state: Trying) -> datetime:
    """Return the earliest time at which a task's current attempt is sent."""
    earlier_tries = state.attempt - state.first
    return state.since + (_PAUSE * 2 ** (earlier_tries - 1) if earlier_tries else timedelta())


def deadline_of(state: Trying) -> datetime:
    """Return the time after which a task's current attempt can neither begin nor still be running."""
    bounds = CATALOGUE[state.asked.kind].bounds
    return begins(state) + bounds.maximum_age + bounds.time_limit


def time_out(state: Task, now: datetime) -> tuple[TaskFact, ...]:
    """End a task if the node reported no result of the current attempt within the maximum time that it can take."""
    match state:
        case Trying(asked=asked, attempt=attempt) if deadline_of(state) <= now:
            return (TaskFailed(asked.task_id, attempt, _no_answer(state), final=True),)
        case Cancelling(asked=asked, of=trying) if deadline_of(trying) <= now:
            return (TaskCancelled(asked.task_id, _no_answer(trying)),)
        case Trying() | Cancelling() | Succeeded() | Failed() | Cancelled():
            return ()
        case _:
            assert_never(state)


def _no_answer(state: Trying) -> Reason:
    return Reason(NO_ANSWER, f"the node reported no result by {deadline_of(state).isoformat()}")


def cancel(state: Task, *, never_sent: bool) -> tuple[TaskFact, ...]:
    """Cancel a task; a task that was never sent is cancelled at once. Raises `Conflict` if the task has finished."""
    match state:
        case Trying(asked=asked):
            requested = TaskCancelRequested(asked.task_id)
            reason = Reason(CANCELLED, "the task was cancelled before it was sent to the node")
            return (requested, TaskCancelled(asked.task_id, reason)) if never_sent else (requested,)
        case Cancelling():
            return ()
        case Succeeded() | Failed() | Cancelled():
            raise Conflict(*against_cancelling(state_name(state)))
        case _:
            assert_never(state)


def against_cancelling(name: StateName) -> list[Objection]:
    """Return the reason why a task in the state with this name cannot be cancelled; an empty list if it can."""
    return [] if name in _UNFINISHED else [finished(name)]


def finished(state: str) -> Objection:
    """Return the reason why a task that ended in this state cannot be cancelled."""
    return Objection("task_finished", f"the task has ended in state {state} and can no longer be cancelled")


def withdrawn(state: Task, attempt: int) -> tuple[TaskFact, ...]:
    """Record that a cancelled attempt was removed from the node's queue before the node fetched it."""
    match state:
        case Cancelling(asked=asked) if state.attempt == attempt:
            return (
                TaskCancelled(
                    asked.task_id,
                    Reason(CANCELLED, "the task was removed from the node's queue before it began"),
                ),
            )
        case _:
            return ()


def retry(state: Task) -> tuple[TaskFact, ...]:
    """Return the fact that begins a new round of attempts of a task. Raises `Conflict` unless the task failed or was
    cancelled.
    """
    match state:
        case Failed(asked=asked) | Cancelled(asked=asked):
            return (TaskRetried(asked.task_id),)
        case Trying() | Cancelling() | Succeeded():
            raise Conflict(*against_retrying(state_name(state)))
        case _:
            assert_never(state)


def against_retrying(name: StateName) -> list[Objection]:
    """Return the reason why a task in the state with this name cannot be retried; an empty list if it can."""
    if name in _UNFINISHED:
        return [in_progress(name)]
    return [SUCCEEDED] if name == "done" else []


def in_progress(state: str) -> Objection:
    """Return the reason why an unfinished task in this state cannot be retried."""
    return Objection(
        "task_in_progress",
        f"the task is in state {state} and cannot be retried before it ends; wait until it ends",
    )
