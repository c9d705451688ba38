"""The states of a row of `work.task`: what ends an order or an attempt, and when an order may be cancelled or retried.

Each row is one order, one attempt of a task, or the cancellation of an attempt, on its way to a node:

    stateDiagram-v2
        state open {
            due --> sent: the task sender puts it into the queue of its node
            sent --> due: the queue did not accept the task at the first send
        }
        [*] --> sent: derived; it is listed in `work.unsent` until the first send
        [*] --> due: derived while the credit of its node is used up
        [*] --> superseded: derived again after a newer order of its slot
        open --> done: the node reported success
        open --> waiting: the attempt failed temporarily, and another one follows
        open --> failed: the node reported a failure
        open --> expired: no result within the longest time that the attempt can take
        open --> poisoned: it repeatedly killed its agent
        open --> refused: the node refused the order
        open --> cancelled: an administrator cancelled it
        open --> superseded: a newer order of its slot, or the end of the attempt that it cancels
        ended --> superseded: a newer attempt of the same task

`open` stands for due and sent, `ended` for every other state except superseded. A row in the queue of an unreachable
node stays `sent` without a due time. `control_plane.dispatcher.pruning` deletes rows that ended, after a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, assert_never
from uuid import UUID

from control_plane.decisions.refusals import Objection
from control_plane.decisions.tasks import NO_ANSWER, SUCCEEDED, finished, in_progress
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
from events.values import AllocationId, SlotId
from tasks.orders import ApplySlice, RemoveSlice, StopSlice

OpenState = Literal["due", "sent"]
EndState = Literal["done", "waiting", "failed", "expired", "poisoned", "refused", "cancelled", "superseded"]
TaskState = OpenState | EndState
APPLY: Final[str] = ApplySlice.model_fields["kind"].default
STOP: Final[str] = StopSlice.model_fields["kind"].default
REMOVE: Final[str] = RemoveSlice.model_fields["kind"].default


@dataclass(frozen=True, slots=True)
class End:
    """End of an order or operation: the new state of its row in `work.task`, with the reason or the result (JSON)."""

    state: EndState
    reason: Reason | None = None
    result: str | None = None


POISONED: Final = "poisoned"
SUPERSEDED: Final = End("superseded")


def failure(reason: Reason) -> End:
    """Return the end of an order or operation that failed for the given reason. The reason's code decides the state of
    the row.
    """
    if reason.code == POISONED:
        return End("poisoned", reason)
    return End("expired" if reason.code == NO_ANSWER else "failed", reason)


def refusal(reason: Reason) -> End:
    """Return the end of an order that the node refused; an order that repeatedly killed the agent is poisoned."""
    return End("poisoned" if reason.code == POISONED else "refused", reason)


def end_of(fact: TaskFact) -> End | None:
    """Return how a fact about a task ends the row of its current attempt, or None if the fact does not end the row."""
    match fact:
        case TaskSucceeded(result=result):
            return End("done", result=result)
        case TaskFailed(reason=reason, final=True):
            return failure(reason)
        case TaskFailed(reason=reason):
            return End("waiting", reason)
        case TaskCancelled(reason=reason):
            return End("cancelled", reason)
        case TaskRequested() | TaskCancelRequested() | TaskRetried():
            return None
        case _:
            assert_never(fact)


@dataclass(frozen=True, slots=True)
class OrderRow:
    """Columns of an order's row in `work.task` that decide whether the order can be cancelled or retried."""

    order_id: UUID
    kind: str
    state: TaskState
    slot_id: SlotId
    allocation_id: AllocationId


def against_cancelling(row: OrderRow) -> Iterator[Objection]:
    """Yield every reason why the order cannot be cancelled."""
    if row.kind == REMOVE:
        yield Objection(
            "removal_not_cancellable",
            f"the removal of the slice in slot {row.slot_id} cannot be cancelled, because the slot must become empty",
        )
    if row.kind == STOP:
        yield Objection(
            "stop_not_cancellable",
            f"a stop cannot be cancelled; start the allocation of slot {row.slot_id} again when it has stopped",
        )
    if row.state not in ("due", "sent"):
        yield finished(row.state)


def against_retrying(row: OrderRow) -> Iterator[Objection]:
    """Yield every reason why the order cannot be retried, except reasons that depend on the state of its allocation.

    Reasons that follow from the state of the order come first. If it succeeded or is superseded, its kind does not
    matter.
    """
    if row.state == "done":
        yield SUCCEEDED
        return
    if row.state == "superseded":
        yield Objection(
            "task_superseded", f"the task cannot be retried, because slot {row.slot_id} has a newer order"
        )
        return
    if row.state in ("due", "sent"):
        yield in_progress(row.state)
    if row.kind == APPLY:
        message = (
            f"a failed bring-up is not retried; create another allocation in place of {row.allocation_id}"
        )
        yield Objection("not_retriable", message)
    if row.kind == STOP:
        outcome = f"allocation {row.allocation_id} fails unless it stops in time"
        message = f"a stop cannot be retried; {outcome}; release the allocation, or wait"
        yield Objection("stop_not_cancellable", message)
