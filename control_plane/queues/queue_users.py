"""Redis users of nodes, kept equal to the nodes' sessions: only a node with a valid session can connect.

`queue_number` in a session's row is the session number that Redis was last configured with. If the node has begun
another session or has no valid one any more, Redis is updated and then the row, under the row's lock, so that a renewal
and an expiry at the same moment cannot reach Redis in the wrong order. The API does this for one node at once; the
dispatcher does it for all nodes every second, and so repairs what a crash or an unavailable Redis left undone. After
Redis lost its data, every node counts as not configured.

Each update of a node also ends its connections. Redis checks a password only once, so a client that connected with an
expired password would stay connected permanently; the node itself reconnects with a valid one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
import structlog
from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from control_plane.identity.sessions import session
from control_plane.queues import redis_nodes
from control_plane.queues.redis_nodes import NodeLogin, RedisUnavailable
from events.values import NodeId
from read_models import nodes
from tasks.failpoints import failpoint

log = structlog.get_logger()
BATCH: Final = 500


@dataclass(frozen=True, slots=True)
class QueueUsers:
    """Configures a Redis user for each node's newest session; any number of instances may run."""

    engine: AsyncEngine
    redis: Redis

    async def follow(self, node_id: NodeId) -> None:
        """Update the Redis user of one node. If Redis is unavailable, the dispatcher updates the user later."""
        try:
            async with self.engine.begin() as conn:
                await self._update(conn, (await conn.execute(_OF_NODE, {"node": node_id})).all())
        except RedisUnavailable as error:
            log.warning("redis_unavailable", error=error.reason, node=node_id)

    async def follow_all(self) -> None:
        """Update the Redis user of every node with a session that began or ended since its last update."""
        try:
            await self._follow_all()
        except RedisUnavailable as error:
            log.warning("redis_unavailable", error=error.reason)

    async def restore(self) -> None:
        """Configure the Redis user of every node, for a Redis that lost its data. Raises `RedisUnavailable`."""
        async with self.engine.begin() as conn:
            forgotten = session.c.queue_number.is_not(None)
            await conn.execute(sa.update(session).where(forgotten).values(queue_number=None))
        await self._follow_all()

    async def _follow_all(self) -> None:
        while True:
            async with self.engine.begin() as conn:
                rows = (await conn.execute(_OF_ALL)).all()
                await self._update(conn, rows)
            if len(rows) < BATCH:
                return

    async def _update(self, conn: AsyncConnection, rows: Sequence[sa.Row[Any]]) -> None:
        if not rows:
            return
        live = [row for row in rows if row.counts]
        ended = [row for row in rows if not row.counts]
        failpoint("queue_users.before")
        await redis_nodes.ensure_node_users(self.redis, [_login(row) for row in live])
        await redis_nodes.end_connections(self.redis, _names(live))
        await redis_nodes.delete_node_users(self.redis, _names(ended))
        await redis_nodes.forget_queues(self.redis, _names(row for row in ended if not row.has_key))
        failpoint("queue_users.applied")
        for updated, number in ((live, session.c.number), (ended, None)):
            if updated:
                named = session.c.node_id.in_(_names(updated))
                await conn.execute(sa.update(session).where(named).values(queue_number=number))


def _login(row: sa.Row[Any]) -> NodeLogin:
    return NodeLogin(NodeId(row.node_id), row.queue_password_sha256, row.prior_queue_password_sha256)


def _names(rows: Iterable[sa.Row[Any]]) -> list[NodeId]:
    return [NodeId(row.node_id) for row in rows]


def _out_of_date(which: sa.ColumnElement[bool], *, skip_locked: bool) -> sa.Select[tuple[Any, ...]]:
    """Return the query that locks sessions with an outdated Redis user; column `counts` is true for a valid session."""
    node = nodes.node
    counts = sa.and_(
        session.c.expires_at > sa.func.clock_timestamp(),
        sa.func.coalesce(node.c.key_thumbprint == session.c.key_thumbprint, sa.false()),
    )
    stale = sa.or_(
        sa.and_(counts, session.c.queue_number.is_distinct_from(session.c.number)),
        sa.and_(sa.not_(counts), session.c.queue_number.is_not(None)),
    )
    return (
        sa.select(session, counts.label("counts"), node.c.key_thumbprint.is_not(None).label("has_key"))
        .outerjoin(node, node.c.node_id == session.c.node_id)
        .where(which, stale)
        .order_by(session.c.node_id)
        .limit(BATCH)
        .with_for_update(of=session, skip_locked=skip_locked)
    )


# Built once: building the query at every renewal would cost more than executing it.
_OF_NODE: Final = _out_of_date(session.c.node_id == sa.bindparam("node"), skip_locked=False)
_OF_ALL: Final = _out_of_date(sa.true(), skip_locked=True)
