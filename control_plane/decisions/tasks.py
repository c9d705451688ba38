"""The life of a task that an admin asked for: its states, and what each command decides about it.

    trying -> succeeded
      |  \\
      |   -> failed            (after its last try; a try that failed in passing is followed by another)
      v
    cancelling -> cancelled    (or succeeded or failed, when the node was done before it heard)

An admin may have a task tried again that failed or was cancelled: that begins a new round of tries. A try is known by
its number; what a node says of another than the present one comes too late, and decides nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Final, assert_never, get_args

from pydantic import BaseModel

from control_plane.decisions.refusals import Conflict, Malformed, Objection
from events.envelope import Recorded
from events.facts import Reason
from events.tasks import (
    TaskAsked,
    TaskCancelAsked,
    TaskCancelled,
    TaskFact,
    TaskFailed,
    TaskRetried,
    TaskSucceeded,
)
from events.values import NodeId
from tasks.catalogue import TaskType
from tasks.operations import OperationBody, OperationCancel
from tasks.orders import Order, RemoveSlice

_BODIES: Final[tuple[type[BaseModel], ...]] = get_args(get_args(OperationBody)[0])
ASKABLE: Final[Mapping[str, bool]] = MappingProxyType(
    {
        body.model_fields["kind"].default: "wish" in body.model_fields
        for body in _BODIES
        if body is not OperationCancel
    }
)
"""Every kind that may be asked for, and whether it is about a slot."""
_WISHES: Final = ("slice.apply", "slice.stop", "slice.remove")
NO_ANSWER: Final = "no_answer"
CANCELLED: Final = "cancelled"


@dataclass(frozen=True, slots=True)
class Trying:
    """`attempt` is under way since `since`, or soon will be; `first` was the first of its round."""

    asked: TaskAsked
    attempt: int
    first: int
    since: datetime
    failure: Reason | None = None
    """Why the try before failed."""


@dataclass(frozen=True, slots=True)
class Cancelling:
    """Its node is being told to stop the try."""

    of: Trying

    @property
    def asked(self) -> TaskAsked:
        return self.of.asked

    @property
    def attempt(self) -> int:
        return self.of.attempt


@dataclass(frozen=True, slots=True)
class Succeeded:
    asked: TaskAsked
    attempt: int
    result: str


@dataclass(frozen=True, slots=True)
class Failed:
    asked: TaskAsked
    attempt: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class Cancelled:
    asked: TaskAsked
    attempt: int
    reason: Reason


Task = Trying | Cancelling | Succeeded | Failed | Cancelled


def evolve(state: Task | None, recorded: Recorded[TaskFact]) -> Task:
    """The state after a fact. Raises `AssertionError` on a history that no decision could have made."""
    following = _after(state, recorded)
    assert following is not None, f"{type(recorded.fact).__name__} cannot follow {type(state).__name__}"
    return following


def _after(state: Task | None, recorded: Recorded[TaskFact]) -> Task | None:
    fact, then = recorded.fact, recorded.recorded_at
    match state, fact:
        case None, TaskAsked():
            return Trying(fact, 1, 1, then)
        case ((Trying() | Cancelling()), TaskSucceeded(attempt=attempt, result=result)):
            return Succeeded(state.asked, attempt, result)
        case Trying(attempt=attempt), TaskFailed(reason=reason, final=False):
            return replace(state, attempt=attempt + 1, since=then, failure=reason)
        case ((Trying() | Cancelling()), TaskFailed(attempt=attempt, reason=reason, final=True)):
            return Failed(state.asked, attempt, reason)
        case Trying(), TaskCancelAsked():
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


def state_name(state: Task) -> str:
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


def kind_askable(kind: str) -> str:
    """The same, if it may be asked for. Raises `Malformed`."""
    if kind in ASKABLE:
        return kind
    if kind in _WISHES:
        why = "slices come and go with their allocations; create, stop, start or release one"
        raise Malformed(Objection("not_askable", why, "/kind"))
    raise Malformed(
        Objection("unknown_kind", f"no task is of kind {kind!r}; there are {', '.join(ASKABLE)}", "/kind")
    )


def ask(asked: TaskAsked, wish: Order | None, spoken: frozenset[str] | None, type_: TaskType) -> TaskAsked:
    """The fact that the task was asked for. Raises `Conflict` with every reason against it.

    `wish` is the slot's newest order, `spoken` what the node said it speaks; None means that it has said nothing yet.
    """
    against = [*_against_slot(asked, wish), *not_spoken(asked.node_id, spoken, type_.announced, "/kind")]
    if against:
        raise Conflict(*against)
    return asked


def _against_slot(asked: TaskAsked, wish: Order | None) -> Iterable[Objection]:
    if asked.slot_id is None:
        return
    if wish is None:
        why = f"slot {asked.slot_id} belongs to no allocation, so nothing is wanted of it"
        yield Objection("nothing_wanted", why, "/slot_id")
    elif asked.kind == "exposure.remove" and not isinstance(wish.body, RemoveSlice):
        why = f"slot {asked.slot_id} is kept for {wish.allocation_id}, and its reservation with it"
        yield Objection("not_wanted", why, "/slot_id")


def not_spoken(
    node: NodeId, spoken: frozenset[str] | None, announced: str, field: str | None = None
) -> Iterable[Objection]:
    """The objection to asking a task of a node whose agent is too old for it; none while it has said nothing yet."""
    if spoken is not None and announced not in spoken:
        yield Objection("not_spoken", f"the agent of node {node} does not speak {announced}", field)


def done(state: Task, attempt: int, result: str) -> tuple[TaskFact, ...]:
    """The node carried a try out, be it asked to stop or not."""
    match state:
        case Trying() | Cancelling() if state.attempt == attempt:
            return (TaskSucceeded(state.asked.task_id, attempt, result),)
        case _:
            return ()


def failed(state: Task, attempt: int, reason: Reason, type_: TaskType) -> tuple[TaskFact, ...]:
    """A try failed; another follows when that may help and the type's bound allows it."""
    match state:
        case Trying(asked=asked, first=first) if state.attempt == attempt:
            again = reason.code in type_.passing and attempt - first < type_.bounds.retries
            return (TaskFailed(asked.task_id, attempt, reason, final=not again),)
        case Cancelling(asked=asked) if state.attempt == attempt:
            if reason.code == CANCELLED:
                return (TaskCancelled(asked.task_id, reason),)
            return (TaskFailed(asked.task_id, attempt, reason, final=True),)
        case _:
            return ()


def stopped(state: Task, attempt: int, *, was_running: bool) -> tuple[TaskFact, ...]:
    """The node heard that it is to stop a try. What it had begun ends with a report of its own."""
    match state:
        case Cancelling(asked=asked) if state.attempt == attempt and not was_running:
            return (TaskCancelled(asked.task_id, Reason(CANCELLED, "it was stopped before it began")),)
        case _:
            return ()


def give_up(state: Task, deadline: datetime, now: datetime) -> tuple[TaskFact, ...]:
    """The node said nothing of a try for as long as it can be under way."""
    reason = Reason(NO_ANSWER, f"the node told no end of it by {deadline.isoformat()}")
    match state:
        case Trying(asked=asked, attempt=attempt) if deadline <= now:
            return (TaskFailed(asked.task_id, attempt, reason, final=True),)
        case Cancelling(asked=asked) if deadline <= now:
            return (TaskCancelled(asked.task_id, reason),)
        case _:
            return ()


def cancel(state: Task, *, never_sent: bool) -> tuple[TaskFact, ...]:
    """Stop a task; one of which no node can know is stopped at once. Raises `Conflict` when it is over."""
    match state:
        case Trying(asked=asked):
            begun = TaskCancelAsked(asked.task_id)
            reason = Reason(CANCELLED, "it was stopped before its node is known to have got it")
            return (begun, TaskCancelled(asked.task_id, reason)) if never_sent else (begun,)
        case Cancelling():
            return ()
        case Succeeded() | Failed() | Cancelled():
            raise Conflict(Objection("task_over", f"the task is {state_name(state)}, and nothing of it runs"))
        case _:
            assert_never(state)


def withdrawn(state: Task, attempt: int) -> tuple[TaskFact, ...]:
    """The try was taken back out of the node's queue, before anybody fetched it."""
    match state:
        case Cancelling(asked=asked) if state.attempt == attempt:
            return (
                TaskCancelled(asked.task_id, Reason(CANCELLED, "it was taken back out of the node's queue")),
            )
        case _:
            return ()


def retry(state: Task) -> tuple[TaskFact, ...]:
    """Begin a new round of tries. Raises `Conflict` unless the last one is over without success."""
    match state:
        case Failed(asked=asked) | Cancelled(asked=asked):
            return (TaskRetried(asked.task_id),)
        case Trying() | Cancelling():
            raise Conflict(Objection("task_under_way", f"the task is {state_name(state)}; wait for its end"))
        case Succeeded():
            raise Conflict(Objection("task_done", "the task is done; ask for another"))
        case _:
            assert_never(state)
