"""Changes of rows in `work.task` by commands and reports, each in the transaction that records the facts that cause
it.

Order ids can be guessed, so a node's report only changes rows of that node.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.decisions.task_states import SUPERSEDED, End
from control_plane.decisions.tasks import CANCEL
from control_plane.work.tables import OPEN, progress, task, unsent
from events.facts import Reason
from events.values import NodeId, ProjectId


@dataclass(frozen=True, slots=True)
class TryRow:
    """Row of an operation in `work.task`: an attempt of a task, or the cancellation of an attempt."""

    operation_id: UUID
    node_id: NodeId
    task_id: UUID
    attempt: int
    kind: str
    state: str
    sends: int


async def find_try(conn: AsyncConnection, operation_id: UUID, node: NodeId) -> TryRow | None:
    """Return the row of the operation with this id; None if it does not exist or belongs to another node."""
    query = _TRIED.where(task.c.order_id == operation_id, task.c.node_id == node)
    row = (await conn.execute(query)).mappings().one_or_none()
    return None if row is None else TryRow(**row)


async def newest_try(conn: AsyncConnection, task_id: UUID) -> TryRow | None:
    """Return the row of a task's newest attempt, locked so that the task sender skips it; None if there is none."""
    # Lock the unsent row first, and wait for it: a task sender that is about to send it locks this row, then the other.
    unsent_too = _UNSENT.where(task.c.task_id == task_id).with_for_update(of=unsent)
    never_sent = set(await conn.scalars(unsent_too))
    query = _TRIED.where(task.c.task_id == task_id, task.c.kind != CANCEL)
    newest_first = query.order_by(task.c.attempt.desc()).limit(1).with_for_update()
    row = (await conn.execute(newest_first)).mappings().one_or_none()
    if row is None:
        return None
    newest = TryRow(**row)
    return replace(newest, sends=0) if newest.operation_id in never_sent else newest


_UNSENT: Final = sa.select(unsent.c.order_id).join(task, task.c.order_id == unsent.c.order_id)
_TRIED: Final = sa.select(
    task.c.order_id.label("operation_id"),
    task.c.node_id,
    task.c.task_id,
    task.c.attempt,
    task.c.kind,
    task.c.state,
    task.c.sends,
).where(task.c.task_id.is_not(None))


async def end(conn: AsyncConnection, node: NodeId, order_id: UUID, how: End, now: datetime) -> bool:
    """End an open order or operation of the node and delete its progress rows; return whether it was still open."""
    mine = task.c.order_id == order_id, task.c.node_id == node
    return await _end(conn, sa.and_(*mine), how, now)


async def end_tries(conn: AsyncConnection, task_id: UUID, how: End, now: datetime) -> None:
    """End all open rows of a requested task: the rows of its attempts, and of the operations that cancel them."""
    await _end(conn, sa.and_(task.c.task_id == task_id, task.c.kind != CANCEL), how, now)
    await _end(conn, sa.and_(task.c.task_id == task_id, task.c.kind == CANCEL), SUPERSEDED, now)


async def set_reason(conn: AsyncConnection, node: NodeId, order_id: UUID, reason: Reason) -> None:
    """Store the reason why an open order has not ended yet."""
    mine = task.c.order_id == order_id, task.c.node_id == node, task.c.state.in_(OPEN)
    await conn.execute(sa.update(task).where(*mine).values(reason=_json(reason)))


async def _end(conn: AsyncConnection, which: sa.ColumnElement[bool], how: End, now: datetime) -> bool:
    ended = (
        sa.update(task)
        .where(which, task.c.state.in_(OPEN))
        .values(state=how.state, ended_at=now, reason=_json(how.reason), result=how.result)
        .returning(task.c.order_id)
        .cte("ended")
    )
    past = sa.delete(progress).where(progress.c.order_id.in_(sa.select(ended.c.order_id)))
    count = sa.select(sa.func.count()).select_from(ended).add_cte(past.cte("past"))
    return bool((await conn.execute(count)).scalar_one())


async def redact_orders(conn: AsyncConnection, project: ProjectId) -> None:
    """Replace ended orders and operations of a project's allocations that contain SSH keys by an empty object."""
    await conn.execute(_REDACT, {"project": project})


# The copy of an order in an operation has the allocation in the text only.
_REDACT: Final = sa.text("""
update work.task t set "order" = '{}' from ledger.event e
 where t.ended_at is not null and t."order" like '%"ssh_authorized_keys"%'
   and e.stream_id = 'allocation-' || substring(t."order" from '"allocation_id" ?: ?"([^"]+)"')
   and e.version = 1 and e.project = :project
""")


def _json(reason: Reason | None) -> Mapping[str, str] | None:
    return None if reason is None else {"code": reason.code, "message": reason.message}
