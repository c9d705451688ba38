"""Redis users of nodes, made to follow the nodes' sessions: who has a session that counts gets in, nobody else.

One road for all of it: a row says which session Redis was told of (`queue_number`), and wherever that is not what
should be, Redis is told and the row is changed, under the row's lock, so that a renewal and an expiry at the same
moment cannot overtake each other on their way to Redis. The API walks the road for one node, at once; the dispatcher
walks it for all, every second, and so mends what a crash or a Redis that was away left undone. A Redis that lost its
memory was told of nothing.

Whatever Redis is told of a node ends the node's connections too. Redis asks for a password only once, so whoever
connected with one that is past would stay for ever; the node itself comes back with one that counts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
import structlog
from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from control_plane import redis_nodes
from control_plane.redis_nodes import NodeLogin, RedisAway
from control_plane.sessions import session
from events.values import NodeId
from read_models import nodes
from tasks.failpoints import failpoint

log = structlog.get_logger()
BATCH: Final = 500


@dataclass(frozen=True, slots=True)
class QueueUsers:
    """Has Redis know each node by its newest session; any number may run."""

    engine: AsyncEngine
    redis: Redis

    async def follow(self, node_id: NodeId) -> None:
        """Tell Redis of one node. A Redis that is away is told by the dispatcher later."""
        try:
            async with self.engine.begin() as conn:
                await self._tell(conn, (await conn.execute(_OF_NODE, {"node": node_id})).all())
        except RedisAway as error:
            log.warning("redis_away", error=error.reason, node=node_id)

    async def follow_all(self) -> None:
        """Tell Redis of every node whose session began or ended since it was last told."""
        try:
            await self._follow_all()
        except RedisAway as error:
            log.warning("redis_away", error=error.reason)

    async def restore(self) -> None:
        """Tell Redis of every node, because it knows of none. Raises `RedisAway`."""
        async with self.engine.begin() as conn:
            forgotten = session.c.queue_number.is_not(None)
            await conn.execute(sa.update(session).where(forgotten).values(queue_number=None))
        await self._follow_all()

    async def _follow_all(self) -> None:
        while True:
            async with self.engine.begin() as conn:
                rows = (await conn.execute(_OF_ALL)).all()
                await self._tell(conn, rows)
            if len(rows) < BATCH:
                return

    async def _tell(self, conn: AsyncConnection, rows: Sequence[sa.Row[Any]]) -> None:
        if not rows:
            return
        live = [row for row in rows if row.counts]
        ended = [row for row in rows if not row.counts]
        failpoint("queue_users.before")
        await redis_nodes.ensure_node_users(self.redis, [_login(row) for row in live])
        await redis_nodes.end_connections(self.redis, _names(live))
        await redis_nodes.shut_out(self.redis, _names(ended))
        await redis_nodes.forget_queues(self.redis, _names(row for row in ended if not row.has_key))
        failpoint("queue_users.told")
        for told, number in ((live, session.c.number), (ended, None)):
            if told:
                named = session.c.node_id.in_(_names(told))
                await conn.execute(sa.update(session).where(named).values(queue_number=number))


def _login(row: sa.Row[Any]) -> NodeLogin:
    return NodeLogin(NodeId(row.node_id), row.queue_password_sha256, row.prior_queue_password_sha256)


def _names(rows: Iterable[sa.Row[Any]]) -> list[NodeId]:
    return [NodeId(row.node_id) for row in rows]


def _unsaid(which: sa.ColumnElement[bool], *, skip_locked: bool) -> sa.Select[tuple[Any, ...]]:
    """Sessions of which Redis was told something else than holds, locked; `counts` says what holds."""
    node = nodes.node
    counts = sa.and_(
        session.c.expires_at > sa.func.clock_timestamp(),
        sa.func.coalesce(node.c.key_thumbprint == session.c.key_thumbprint, sa.false()),
    )
    unsaid = sa.or_(
        sa.and_(counts, session.c.queue_number.is_distinct_from(session.c.number)),
        sa.and_(sa.not_(counts), session.c.queue_number.is_not(None)),
    )
    return (
        sa.select(session, counts.label("counts"), node.c.key_thumbprint.is_not(None).label("has_key"))
        .outerjoin(node, node.c.node_id == session.c.node_id)
        .where(which, unsaid)
        .order_by(session.c.node_id)
        .limit(BATCH)
        .with_for_update(of=session, skip_locked=skip_locked)
    )


# Put together once: at every renewal that would cost more than to ask it.
_OF_NODE: Final = _unsaid(session.c.node_id == sa.bindparam("node"), skip_locked=False)
_OF_ALL: Final = _unsaid(sa.true(), skip_locked=True)
