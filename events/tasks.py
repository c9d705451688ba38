"""Facts about requested tasks, in the order of their life cycle. Stream: `task-<task_id>`.

A task is attempted until it succeeds, is cancelled, or fails with an error that a retry cannot fix. Each attempt is a
separate operation for the node; an admin may start a new round of attempts.
"""

from uuid import UUID

from events.facts import Fact, Reason
from events.values import AllocationId, NodeId, SlotId


class TaskRequested(Fact, frozen=True):
    """An admin requested an operation on a node or a slot. For a slot, the allocation that holds it is recorded too."""

    task_id: UUID
    """Id of the task, the same for all its attempts."""
    kind: str
    """Kind of the operation, one of docs/tasks.md."""
    node_id: NodeId
    """Node that executes the task."""
    slot_id: SlotId | None
    """Slot that the task concerns; null if it concerns the whole node."""
    allocation_id: AllocationId | None
    """Allocation that held the slot at the time of the request; null if no allocation held it."""


class TaskSucceeded(Fact, frozen=True):
    """The node executed the task successfully."""

    task_id: UUID
    """Id of the task."""
    attempt: int
    """Number of the attempt, from 1."""
    result: str
    """Result as canonical JSON of the result type in docs/tasks.md."""


class TaskFailed(Fact, frozen=True):
    """An attempt of the task failed."""

    task_id: UUID
    """Id of the task."""
    attempt: int
    """Number of the attempt, from 1."""
    reason: Reason
    final: bool
    """False if another attempt follows automatically; true if none follows."""


class TaskCancelRequested(Fact, frozen=True):
    """An admin requested the cancellation of the task; the node is notified."""

    task_id: UUID
    """Id of the task."""


class TaskCancelled(Fact, frozen=True):
    """The task was cancelled, before it began or while it was being executed."""

    task_id: UUID
    """Id of the task."""
    reason: Reason


class TaskRetried(Fact, frozen=True):
    """An admin requested a retry of a task that had failed or was cancelled."""

    task_id: UUID
    """Id of the task."""


TaskFact = TaskRequested | TaskSucceeded | TaskFailed | TaskCancelRequested | TaskCancelled | TaskRetried
