"""Views of tasks: one row of `work.task` each, with its progress and the reason why its stream is parked.

A requested task is shown by its newest attempt; an order to stop a task is shown as `cancelling` of that task.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.api.views.allowed_actions import (
    AllowedActions,
    actions_on_operation,
    actions_on_parked,
    actions_on_task,
)
from control_plane.api.views.views import ReasonView
from control_plane.decisions.access import Principal, Within
from control_plane.decisions.tasks import CANCEL, Trying, fold, state_name
from control_plane.work.tables import OPEN, parked, progress, task, unsent
from events.envelope import Recorded
from events.tasks import TaskFact, TaskRequested
from read_models.allocations import allocation


class ProgressView(BaseModel):
    """The newest reported step of a task; `number` counts from 1, and `of` is null while the total is unknown."""

    step: str
    number: int
    of: int | None
    at: datetime


class ParkedView(BaseModel):
    """A parked stream: the dispatcher cannot process it. It is retried automatically, and at once on request."""

    stream: str
    since: datetime
    error: str
    next_look_at: datetime | None
    allowed_actions: AllowedActions
    """Actions that the caller may take now, or the reason why not."""


class TaskView(BaseModel):
    """A task. `state`: due (not sent yet), sent, waiting (for its next attempt), done, refused, failed, poisoned (it
    killed its node's agent repeatedly), superseded, cancelled or expired (the node reported no result in time).

    `created_at` is the time at which the present attempt began; that of the first attempt is the time of the request.
    `sends` counts how often it was put on the node's queue, `deliveries` how often it was fetched from there, null if
    the queue has no count. `result` has the type that the task catalogue defines for the kind.
    """

    id: str
    kind: str
    state: str
    node_id: str
    slot_id: str | None
    allocation_id: str | None
    attempt: int | None
    cancelling: bool
    sends: int
    deliveries: int | None = None
    created_at: datetime
    sent_at: datetime | None
    due_at: datetime | None
    ended_at: datetime | None
    reason: ReasonView | None
    result: dict[str, Any] | None
    progress: ProgressView | None
    parked: ParkedView | None
    allowed_actions: AllowedActions
    """Actions that the caller may take now, or the reason why not."""


_STOP: Final = task.alias("stop")
_STREAM: Final = sa.func.coalesce(
    "task-" + sa.cast(task.c.task_id, sa.Text), "allocation-" + task.c.allocation_id
)
SHOWN: Final = sa.or_(task.c.task_id.is_(None), sa.and_(task.c.kind != CANCEL, task.c.state != "superseded"))
_NEVER_SENT: Final = sa.and_(unsent.c.order_id.is_not(None), task.c.state.in_(OPEN))
_DISPLAYED: Final[Mapping[str, sa.ColumnElement[Any]]] = {
    "state": sa.case((_NEVER_SENT, "due"), else_=task.c.state),
    "sends": sa.case((_NEVER_SENT, 0), else_=task.c.sends),
    "sent_at": sa.case((_NEVER_SENT, None), else_=task.c.sent_at),
}
"""Columns of a task row. Their stored values assume that the task was sent; for a task that was not sent yet, these
expressions correct them.
"""
STATE: Final = _DISPLAYED["state"]
_COLUMNS: Final[Sequence[sa.ColumnElement[Any]]] = [
    _DISPLAYED.get(column.name, column).label(column.name) for column in task.c
]
ROWS: Final[sa.Select[Any]] = (
    sa.select(
        *_COLUMNS,
        *(progress.c[name].label(f"progress_{name}") for name in ("step", "number", "of", "at")),
        *(parked.c[name].label(f"parked_{name}") for name in ("stream_id", "since", "error")),
        sa.exists()
        .where(_STOP.c.task_id == task.c.task_id, _STOP.c.kind == CANCEL, _STOP.c.state.in_(OPEN))
        .label("cancelling"),
    )
    .join(progress, progress.c.order_id == task.c.order_id, isouter=True)
    .join(unsent, unsent.c.order_id == task.c.order_id, isouter=True)
    .join(parked, parked.c.stream_id == _STREAM, isouter=True)
)
"""Query of task rows, to be filtered by `SHOWN` and other conditions. `STATE` is the state that it displays."""


def of_projects(within: Within) -> sa.ColumnElement[bool]:
    """Return the condition that a task is an order of an allocation in one of these projects; None: every task."""
    if within is None:
        return sa.true()
    own = sa.select(allocation.c.allocation_id).where(allocation.c.project.in_(sorted(within)))
    return task.c.allocation_id.in_(own)


async def one(conn: AsyncConnection, task_id: UUID, within: Within) -> sa.Row[Any] | None:
    """Return the row of a task; None if it has no row yet, or if the task does not belong to one of the projects
    `within`.
    """
    has_id = sa.or_(task.c.order_id == task_id, task.c.task_id == task_id)
    has_id = sa.and_(has_id, sa.func.coalesce(task.c.task_id, task.c.order_id) == task_id)
    row: sa.Row[Any] | None = (
        await conn.execute(ROWS.where(has_id, SHOWN, of_projects(within)))
    ).one_or_none()
    return row


def task_view(row: sa.Row[Any], principal: Principal) -> TaskView:
    """Return the view of a task for a caller."""
    return TaskView(
        id=str(row.task_id or row.order_id),
        **{name: getattr(row, name) for name in _COPIED_COLUMNS},
        due_at=row.due_at if row.state in OPEN else None,
        reason=row.reason and ReasonView(**row.reason),
        result=row.result and json.loads(row.result),
        progress=_progress(row),
        parked=None
        if row.parked_error is None
        else ParkedView(
            stream=row.parked_stream_id,
            since=row.parked_since,
            error=row.parked_error,
            next_look_at=None,
            allowed_actions=actions_on_parked(principal),
        ),
        allowed_actions=actions_on_task(principal, row),
    )


_COPIED_COLUMNS: Final = (
    *("kind", "state", "node_id", "slot_id", "allocation_id", "attempt", "cancelling", "sends"),
    *("created_at", "sent_at", "ended_at"),
)


def _progress(row: sa.Row[Any]) -> ProgressView | None:
    if row.progress_step is None or row.state not in OPEN:
        return None
    return ProgressView(
        step=row.progress_step, number=row.progress_number, of=row.progress_of, at=row.progress_at
    )


def unsent_view(history: Sequence[Recorded[TaskFact]], principal: Principal) -> TaskView:
    """Return the view of a task that the dispatcher has not processed yet."""
    state = fold(history)
    assert state is not None, "the stream of a task must begin with the request of the task"
    shown = {
        "state": "due" if isinstance(state, Trying) else state_name(state),
        "attempt": state.attempt,
        "allowed_actions": actions_on_operation(principal, state_name(state)),
    }
    return requested_view(state.asked, history[0].recorded_at, principal).model_copy(update=shown)


def requested_view(asked: TaskRequested, created_at: datetime, principal: Principal) -> TaskView:
    """Return the view of a task that was requested just now."""
    return TaskView(
        id=str(asked.task_id),
        kind=asked.kind,
        state="due",
        node_id=asked.node_id,
        slot_id=asked.slot_id,
        allocation_id=asked.allocation_id,
        attempt=1,
        cancelling=False,
        sends=0,
        created_at=created_at,
        sent_at=None,
        due_at=None,
        ended_at=None,
        reason=None,
        result=None,
        progress=None,
        parked=None,
        allowed_actions=actions_on_operation(principal, "trying"),
    )
