"""Sees that every task that is not at its end is in its node's queue: the first send and every other.

A task is looked at when it is due: at once after it was written, and again every `RESEND` while the node has not
told its end. Sending is idempotent, so a task that waits in the queue or is being worked on stays as it is, and
one that was lost with Redis, or with the worker that held it, is put back. There is no other way to recover.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa
import structlog
from redis.asyncio import Redis
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from control_plane import redis_nodes, work
from control_plane.handle import database_time
from control_plane.redis_nodes import NodeLogin, RedisAway
from control_plane.relay import AlreadyThere, Enqueued, Outcome, Outgoing, Relay, Requeued
from events.values import NodeId
from read_models import nodes
from tasks.failpoints import failpoint
from tasks.wire import OrderMessage, encode_order

log = structlog.get_logger()
RESEND: Final = timedelta(seconds=5)
BACK_OFF: Final = timedelta(seconds=1)
BATCH: Final = 500


@dataclass(frozen=True, slots=True)
class Sweeper:
    engine: AsyncEngine
    redis: Redis
    relay: Relay

    async def send_due(self) -> int:
        """Send every task that is due; returns how many were. A Redis that is away leaves them due."""
        sent = 0
        while True:
            async with self.engine.begin() as conn:
                rows = await _due(conn)
                if not rows:
                    return sent
                try:
                    await self._send(conn, rows)
                except RedisAway as error:
                    log.warning("redis_away", error=error.reason, due=len(rows))
                    return sent
            failpoint("sweeper.sent")
            sent += len(rows)

    async def _send(self, conn: AsyncConnection, rows: Sequence[sa.Row[Any]]) -> None:
        now = await database_time(conn)
        messages = [
            Outgoing(
                NodeId(row.node_id),
                row.order_id,
                encode_order(OrderMessage(row.order_id, row.kind, row.order), sent_at=now),
            )
            for row in rows
        ]
        failpoint("sweeper.before_send")
        outcomes = await self.relay.enqueue_many(messages)
        for row, outcome in zip(rows, outcomes, strict=True):
            await conn.execute(_after(row, outcome, now + (RESEND if _is_there(outcome) else BACK_OFF), now))

    async def withdraw_stranded(self) -> None:
        """Take back what dead workers still hold of tasks that are at their end; the others are sent again anyway."""
        try:
            async with self.engine.connect() as conn:
                names = [node.node_id for node in await nodes.enrolled(conn)]
                stranded = await self.relay.stranded(names)
                wanted = await _open(conn, [order for orders in stranded.values() for order in orders])
            for node, orders in stranded.items():
                for order in orders:
                    if order not in wanted:
                        await self.relay.withdraw(node, order)
        except RedisAway as error:
            log.warning("redis_away", error=error.reason)

    async def restore_redis(self) -> None:
        """Give a Redis that lost its memory what it needs: users, scripts, and every open task."""
        try:
            if await redis_nodes.inspect(self.redis) is None:
                return
            async with self.engine.connect() as conn:
                enrolled = await nodes.enrolled(conn)
            logins = [
                NodeLogin(node.node_id, node.queue_password_sha256)
                for node in enrolled
                if node.queue_password_sha256 is not None
            ]
            await redis_nodes.restore(self.redis, logins, self._refill)
        except RedisAway as error:
            log.warning("redis_away", error=error.reason)

    async def _refill(self) -> None:
        async with self.engine.begin() as conn:
            now = await database_time(conn)
            await conn.execute(sa.update(work.task).where(work.task.c.state == "sent").values(due_at=now))
        await self.send_due()


def _is_there(outcome: Outcome) -> bool:
    return isinstance(outcome, Enqueued | Requeued | AlreadyThere)


def _after(row: sa.Row[Any], outcome: Outcome, due_at: object, now: object) -> sa.Executable:
    """The task after an attempt to send it."""
    update = sa.update(work.task).where(work.task.c.order_id == row.order_id)
    if isinstance(outcome, AlreadyThere):
        return update.values(state="sent", due_at=due_at)
    if isinstance(outcome, Enqueued | Requeued):
        log.info("task_sent", order=str(row.order_id), node=row.node_id, kind=row.kind, sends=row.sends + 1)
        return update.values(state="sent", due_at=due_at, sent_at=now, sends=row.sends + 1)
    log.warning("task_not_taken", order=str(row.order_id), node=row.node_id, outcome=str(outcome))
    return update.values(due_at=due_at)


async def _open(conn: AsyncConnection, order_ids: list[UUID]) -> set[UUID]:
    task = work.task
    # One array: a parameter for each would be too many when many nodes hold many.
    named = sa.literal(order_ids, ARRAY(sa.Uuid()))
    query = sa.select(task.c.order_id).where(
        task.c.order_id == sa.func.any(named), task.c.state.in_(("due", "sent"))
    )
    return set(await conn.scalars(query))


async def _due(conn: AsyncConnection) -> Sequence[sa.Row[Any]]:
    task = work.task
    query = (
        sa.select(task)
        .where(task.c.state.in_(("due", "sent")), task.c.due_at <= sa.func.clock_timestamp())
        .order_by(task.c.due_at)
        .limit(BATCH)
        .with_for_update(skip_locked=True)
    )
    return (await conn.execute(query)).all()
