"""What callers see of tasks: one row of `work.task` each, with its progress and what parked its stream.

A task that was asked for is shown by its newest try; what tells a node to stop one is shown as `cancelling`.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.api.views import ReasonView
from control_plane.decisions.tasks import Trying, fold, state_name
from control_plane.task_rows import CANCEL
from control_plane.work import OPEN, parked, progress, task, unsent
from events.envelope import Recorded
from events.tasks import TaskFact


class ProgressView(BaseModel):
    """The newest step that the node told of, `number` from 1; `of` is null while nobody knows how many there are."""

    step: str
    number: int
    of: int | None
    at: datetime


class ParkedView(BaseModel):
    """A stream that the dispatcher cannot go on with; it looks again by itself, and at once when told to."""

    stream: str
    since: datetime
    error: str
    next_look_at: datetime | None


class TaskView(BaseModel):
    """`state`: due (not sent yet), sent, waiting (for its next try), done, refused, failed, poisoned (its node's agent
    died of it again and again), superseded, cancelled or expired (the node told no end in time).

    `sends` counts how often it was put on the node's queue, `deliveries` how often it was fetched from there, as far
    as the queue tells. `result` is of the type that the catalogue of tasks names for the kind.
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


_STOP: Final = task.alias("stop")
_STREAM: Final = sa.func.coalesce(
    "task-" + sa.cast(task.c.task_id, sa.Text), "allocation-" + task.c.allocation_id
)
SHOWN: Final = sa.or_(task.c.task_id.is_(None), sa.and_(task.c.kind != CANCEL, task.c.state != "superseded"))
_NEVER_SENT: Final = sa.and_(unsent.c.order_id.is_not(None), task.c.state.in_(OPEN))
_SEEN: Final[Mapping[str, sa.ColumnElement[Any]]] = {
    "state": sa.case((_NEVER_SENT, "due"), else_=task.c.state),
    "sends": sa.case((_NEVER_SENT, 0), else_=task.c.sends),
    "sent_at": sa.case((_NEVER_SENT, None), else_=task.c.sent_at),
}
"""Columns that a row has from the start as they will be once its task is sent."""
STATE: Final = _SEEN["state"]
_COLUMNS: Final[Sequence[sa.ColumnElement[Any]]] = [
    _SEEN.get(column.name, column).label(column.name) for column in task.c
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
"""Rows to show, to be narrowed down by `SHOWN` and more; `STATE` is theirs."""


async def one(conn: AsyncConnection, task_id: UUID) -> sa.Row[Any] | None:
    """The row behind a task's id; None when it has none (yet)."""
    mine = sa.or_(task.c.order_id == task_id, task.c.task_id == task_id)
    mine = sa.and_(mine, sa.func.coalesce(task.c.task_id, task.c.order_id) == task_id)
    row: sa.Row[Any] | None = (await conn.execute(ROWS.where(mine, SHOWN))).one_or_none()
    return row


def task_view(row: sa.Row[Any]) -> TaskView:
    return TaskView(
        id=str(row.task_id or row.order_id),
        **{name: getattr(row, name) for name in _AS_THEY_ARE},
        due_at=row.due_at if row.state in OPEN else None,
        reason=row.reason and ReasonView(**row.reason),
        result=row.result and json.loads(row.result),
        progress=_progress(row),
        parked=None
        if row.parked_error is None
        else ParkedView(
            stream=row.parked_stream_id, since=row.parked_since, error=row.parked_error, next_look_at=None
        ),
    )


_AS_THEY_ARE: Final = (
    *("kind", "state", "node_id", "slot_id", "allocation_id", "attempt", "cancelling", "sends"),
    *("created_at", "sent_at", "ended_at"),
)


def _progress(row: sa.Row[Any]) -> ProgressView | None:
    if row.progress_step is None or row.state not in OPEN:
        return None
    return ProgressView(
        step=row.progress_step, number=row.progress_number, of=row.progress_of, at=row.progress_at
    )


def unsent_view(history: Sequence[Recorded[TaskFact]]) -> TaskView:
    """A task that the dispatcher has not come to yet."""
    state = fold(history)
    assert state is not None, "a task's stream begins with its being asked for"
    asked = state.asked
    return TaskView(
        id=str(asked.task_id),
        kind=asked.kind,
        state="due" if isinstance(state, Trying) else state_name(state),
        node_id=asked.node_id,
        slot_id=asked.slot_id,
        allocation_id=asked.allocation_id,
        attempt=state.attempt,
        cancelling=False,
        sends=0,
        created_at=history[0].recorded_at,
        sent_at=None,
        due_at=None,
        ended_at=None,
        reason=None,
        result=None,
        progress=None,
        parked=None,
    )


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def cursor_of(row: sa.Row[Any]) -> str:
    """The place of a row in the list: when it was written, in microseconds, and its order."""
    return f"{(row.created_at - _EPOCH) // timedelta(microseconds=1)}.{row.order_id}"


def place_of(cursor: str) -> tuple[datetime, UUID]:
    """The inverse of `cursor_of`. Raises `ValueError` and `OverflowError`."""
    moment, _, order = cursor.partition(".")
    return _EPOCH + timedelta(microseconds=int(moment)), UUID(order)
