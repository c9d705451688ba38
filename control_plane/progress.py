"""How far nodes are with their orders: told several times a second, worth nothing once it is old, and no event.

The newest of each order stands in `work.progress`, for whoever looks. For whoever watches it goes through Redis, on a
channel for each node, at once and to every process of the API; where nobody watches the node, Redis drops it. Losing
any of it, with Redis or with a crash of Postgres, loses a line on a screen.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import redis.asyncio
import sqlalchemy as sa
import structlog
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from control_plane.outage import REDIS_AWAY
from control_plane.work import OPEN, progress, task
from events.values import AllocationId, NodeId
from tasks.agent_api import Progress

log = structlog.get_logger()


class Step(msgspec.Struct, frozen=True):
    """Where the work on a task is, as watchers get it; `at` is RFC 3339."""

    task_id: str
    kind: str
    slot_id: str | None
    allocation_id: str | None
    step: str
    number: int
    of: int | None
    at: str


async def forget(engine: AsyncEngine) -> None:
    """Drop what orders told that ended otherwise than by their node's own word."""
    still_open = sa.exists().where(task.c.order_id == progress.c.order_id, task.c.state.in_(OPEN))
    async with engine.begin() as conn:
        await conn.execute(sa.delete(progress).where(~still_open))


def channel_of(node: NodeId) -> str:
    return f"progress:{node}"


async def keep(conn: AsyncConnection, node: NodeId, told: Sequence[Progress]) -> list[Step]:
    """Store the newest of each order that is the node's and still open; returns those."""
    newest = {each.order_id: each for each in sorted(told, key=lambda each: each.at)}
    mine = task.c.order_id.in_(newest), task.c.node_id == node, task.c.state.in_(OPEN)
    rows = (await conn.execute(_NAMED.where(*mine))).all()
    if rows:
        # In one order everywhere, so that two batches never wait for one another.
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
    """How far the open orders are that `which` picks among rows of `work.task`."""
    columns = (progress.c[name].label(f"now_{name}") for name in ("step", "number", "of", "at"))
    query = _NAMED.add_columns(*columns).join(progress, progress.c.order_id == task.c.order_id)
    rows = await conn.execute(query.where(which, task.c.state.in_(OPEN)))
    return [
        _step(row, {"step": row.now_step, "number": row.now_number, "of": row.now_of, "at": row.now_at})
        for row in rows
    ]


_NAMED: Final = sa.select(
    task.c.order_id,
    sa.func.coalesce(task.c.task_id, task.c.order_id).label("named"),
    task.c.kind,
    task.c.slot_id,
    task.c.allocation_id,
)


def _values(told: Progress) -> dict[str, Any]:
    return {"order_id": told.order_id, "step": told.step, "number": told.number, "of": told.of, "at": told.at}


def _step(row: sa.Row[*tuple[Any, ...]], told: Mapping[str, Any]) -> Step:
    return Step(
        task_id=str(row.named),
        kind=row.kind,
        slot_id=row.slot_id,
        allocation_id=None if row.allocation_id is None else AllocationId(row.allocation_id),
        step=told["step"],
        number=told["number"],
        of=told["of"],
        at=told["at"].isoformat(),
    )


async def spread(client: redis.asyncio.Redis, node: NodeId, steps: Iterable[Step]) -> None:
    """Tell every watcher of the node, wherever it is. Redis that is away costs them this news and no more."""
    try:
        await client.publish(channel_of(node), msgspec.json.encode(list(steps)))
    except REDIS_AWAY as error:
        log.info("progress_lost", node=node, error=str(error))
