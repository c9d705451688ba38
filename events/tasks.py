"""Facts about tasks that somebody asked for, in life order. Stream: `task-<task_id>`.

A task is tried until it succeeds, is cancelled, or fails in a way that trying again cannot help. Each try is an
operation of its own to the node; an admin may begin a new round of tries.
"""

from uuid import UUID

from events.facts import Fact, Reason
from events.values import AllocationId, NodeId, SlotId


class TaskAsked(Fact, frozen=True):
    """An admin asked for one operation on a node, or on a slot as an allocation held it then."""

    task_id: UUID
    """Name of the task, the same for all its tries."""
    kind: str
    """What is to be done, as the catalogue of tasks names it."""
    node_id: NodeId
    """Where."""
    slot_id: SlotId | None
    """The slot it is about, where it is about one."""
    allocation_id: AllocationId | None
    """The allocation whose slice the slot carried or was to give up."""


class TaskSucceeded(Fact, frozen=True):
    """The node carried it out."""

    task_id: UUID
    """Name of the task."""
    attempt: int
    """Which try it was, from 1."""
    result: str
    """What came of it, as canonical JSON of the result's type in the catalogue of tasks."""


class TaskFailed(Fact, frozen=True):
    """A try came to nothing."""

    task_id: UUID
    """Name of the task."""
    attempt: int
    """Which try it was, from 1."""
    reason: Reason
    final: bool
    """False when another try follows by itself."""


class TaskCancelAsked(Fact, frozen=True):
    """An admin wants the task stopped; its node is told so."""

    task_id: UUID
    """Name of the task."""


class TaskCancelled(Fact, frozen=True):
    """The task was stopped, or never begun."""

    task_id: UUID
    """Name of the task."""
    reason: Reason


class TaskRetried(Fact, frozen=True):
    """An admin had a task that failed or was cancelled tried again."""

    task_id: UUID
    """Name of the task."""


TaskFact = TaskAsked | TaskSucceeded | TaskFailed | TaskCancelAsked | TaskCancelled | TaskRetried
