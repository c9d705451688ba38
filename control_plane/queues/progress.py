"""Progress of orders: reported by nodes several times per second, soon out of date, and never an event.

`work.progress` stores the newest report of each order for readers. Watchers also receive each report through Redis, on
one channel per node that every API process can subscribe to; Redis drops reports of nodes without watchers. If progress
is lost with Redis or in a crash of Postgres, only its display is affected.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import redis.asyncio
import sqlalchemy as sa
import structlog
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from control_plane.outage import REDIS_UNAVAILABLE
from control_plane.work.tables import OPEN, progress, task
from events.values import AllocationId, NodeId
from tasks.agent_api import Progress

log = structlog.get_logger()


class Step(msgspec.Struct, frozen=True):
    """The current step of a task, as watchers receive it; `at` is an RFC 3339 time."""

    task_id: str
    kind: str
    slot_id: str | None
    allocation_id: str | None
    step: str
    number: int
    of: int | None
    at: str


async def forget(engine: AsyncEngine) -> None:
    """Delete the progress of orders that ended without a final report of their node."""
    still_open = sa.exists().where(task.c.order_id == progress.c.order_id, task.c.state.in_(OPEN))
    async with engine.begin() as conn:
        await conn.execute(sa.delete(progress).where(~still_open))


def channel_of(node: NodeId) -> str:
    """Return the name of the Redis channel for a node's progress."""
    return f"progress:{node}"


async def keep(conn: AsyncConnection, node: NodeId, reports: Sequence[Progress]) -> list[Step]:
    """Store the newest progress report of each open order of the node, and return these reports."""
    newest = {each.order_id: each for each in sorted(reports, key=lambda each: each.at)}
    mine = task.c.order_id.in_(newest), task.c.node_id == node, task.c.state.in_(OPEN)
    rows = (await conn.execute(_TASK_COLUMNS.where(*mine))).all()
    if rows:
        # Every writer uses one order, so that two batches never deadlock.
        values = [_values(newest[row.order_id]) for row in sorted(rows, key=lambda row: row.order_id)]
        statement = insert(progress).values(values)
        fresh = {name: statement.excluded[name] for name in ("step", "number", "of", "at")}
        await conn.execute(
            statement.on_conflict_do_update(
                index_elements=["order_id"], set_=fresh, where=progress.c.at <= statement.excluded.at
            )
        )
    return [_step(row, _values(newest[row.order_id])) for row in rows]


async def newest_of(conn: AsyncConnection, which: sa.ColumnElement[bool]) -> list[Step]:
    """Return the newest progress report of each open order in `work.task` that meets the condition `which`."""
    columns = (progress.c[name].label(f"now_{name}") for name in ("step", "number", "of", "at"))
    query = _TASK_COLUMNS.add_columns(*columns).join(progress, progress.c.order_id == task.c.order_id)
    rows = await conn.execute(query.where(which, task.c.state.in_(OPEN)))
    return [
        _step(row, {"step": row.now_step, "number": row.now_number, "of": row.now_of, "at": row.now_at})
        for row in rows
    ]


_TASK_COLUMNS: Final = sa.select(
    task.c.order_id,
    sa.func.coalesce(task.c.task_id, task.c.order_id).label("named"),
    task.c.kind,
    task.c.slot_id,
    task.c.allocation_id,
)


def _values(report: Progress) -> dict[str, Any]:
    return {
        "order_id": report.order_id,
        "step": report.step,
        "number": report.number,
        "of": report.of,
        "at": report.at,
    }


def _step(row: sa.Row[*tuple[Any, ...]], report: Mapping[str, Any]) -> Step:
    return Step(
        task_id=str(row.named),
        kind=row.kind,
        slot_id=row.slot_id,
        allocation_id=None if row.allocation_id is None else AllocationId(row.allocation_id),
        step=report["step"],
        number=report["number"],
        of=report["of"],
        at=report["at"].isoformat(),
    )


async def spread(client: redis.asyncio.Redis, node: NodeId, steps: Iterable[Step]) -> None:
    """Publish progress steps to every watcher of the node. If Redis is unavailable, watchers miss only these steps."""
    try:
        await client.publish(channel_of(node), msgspec.json.encode(list(steps)))
    except REDIS_UNAVAILABLE as error:
        log.info("task_progress_not_published", node=node, error=str(error))
