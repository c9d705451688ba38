"""Keep one node from exhausting Redis: revoke a node that writes more data, has more connections or uses more processor
time than its work can require.

What a node writes under its own keys cannot be checked beforehand, and all nodes share the memory, the time and the
connections of Redis. So each queue is measured every two minutes, a part of the queues each second, and all queues are
measured at once when the data in Redis grew by `GROWN_BYTES`. Connections are counted every two minutes, and when their
number or their memory grew. The limits exceed what a node needs, and what the control plane can send to it. Redis
itself limits the memory of a single connection (`deploy.embedded.redis`). A command of a million words leaves no data
behind and delays every client for seconds: the product's scripts refuse such a command, and the slow log names its
sender. An endless stream of short commands is found by sampling commands while Redis is busy
(`control_plane.queues.queue_time`).

A flooding node is revoked like by an administrator: one event is recorded even if several processes find the flood, and
then the node's Redis user, connections and keys are removed. After a crash between these steps,
`QueueUsers.follow_all` removes the rest. Tasks of other nodes for which Redis had no memory are still due, and are sent
again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog
from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import AsyncEngine

from control_plane.commands.identity import revoke_node
from control_plane.decisions.refusals import UnknownName
from control_plane.handle import Handle
from control_plane.origin import Origin
from control_plane.queues import redis_nodes
from control_plane.queues.queue_time import TimeWatch
from control_plane.queues.queue_users import QueueUsers
from control_plane.queues.queue_weights import (
    FLOOD,
    NEARLY_FLOODED,
    Weight,
    connections,
    requires_password,
    review_connections,
    senders_of_long_commands,
    weights,
)
from control_plane.queues.redis_nodes import RedisUnavailable
from events.values import NodeId, new_uuid
from read_models import nodes

log = structlog.get_logger()
GROWN_BYTES: Final = 2 << 20
"""Growth of the data in Redis, in bytes, after which all queues are measured at once."""
GROWN_CONNECTIONS: Final = 64
"""Growth of the number of connections after which the connections are counted by node at once."""
ROUND: Final = 120
"""Number of calls of `QueueWatch.look` in which the queue of each node is measured once."""


@dataclass(slots=True)
class Growth:
    """Detector of growth: whether a value grew by `step` since the lowest value observed."""

    step: int
    lowest: int | None = None

    def has_grown(self, now: int) -> bool:
        """Return whether the value grew by `step` since the lowest value observed; each step is detected once."""
        if self.lowest is None or now - self.lowest >= self.step:
            self.lowest = now
            return True
        self.lowest = min(self.lowest, now)
        return False


@dataclass(slots=True)
class QueueWatch:
    """Measures the queues of all nodes in rounds, to find floods. Two instances may run at the same time."""

    engine: AsyncEngine
    redis: Redis
    handle: Handle
    _turn: int = -1
    _nodes: list[NodeId] = field(default_factory=list)
    _kept: Growth = field(default_factory=lambda: Growth(GROWN_BYTES))
    _in_buffers: Growth = field(default_factory=lambda: Growth(GROWN_BYTES))
    _connected: Growth = field(default_factory=lambda: Growth(GROWN_CONNECTIONS))
    _swelling: set[NodeId] = field(default_factory=set)

    _time: TimeWatch = field(init=False)

    def __post_init__(self) -> None:
        self._time = TimeWatch(self.redis)

    async def look(self) -> None:
        """Measure a part of all queues, so that every queue is measured within `ROUND` calls. Call this method once per
        second.

        If Redis is unavailable, log it and return; the next call queries Redis again.
        """
        self._turn = (self._turn + 1) % ROUND
        try:
            usage = await redis_nodes.usage(self.redis)
            for name, words in (await senders_of_long_commands(self.redis)).items():
                await self._revoke(name, f"the node sent a Redis command of {words} words")
            for name, reason in (await self._time.look(usage.cpu_seconds)).items():
                await self._revoke(name, reason)
            grown = self._kept.has_grown(usage.kept_bytes)
            connections_grew = (
                self._connected.has_grown(usage.connections),
                self._in_buffers.has_grown(usage.connection_bytes),
            )
            if grown or self._turn == 0:
                self._nodes = await self._enrolled()
            await self._weigh(self._nodes if grown else self._nodes[self._turn :: ROUND])
            if any(connections_grew) or self._turn == 0:
                await self._count()
        except RedisUnavailable as error:
            log.warning("redis_unavailable", error=error.reason)

    async def _enrolled(self) -> list[NodeId]:
        """Return the ids of all nodes that have a queue in Redis, which are the enrolled nodes."""
        async with self.engine.connect() as conn:
            return await nodes.enrolled(conn)

    async def _weigh(self, names: Sequence[NodeId]) -> None:
        for name, weight in (await weights(self.redis, names)).items():
            await self._judge(name, weight)

    async def _judge(self, name: NodeId, weight: Weight) -> None:
        """Revoke a node if its queue exceeds the limit `FLOOD`. Log once when the queue exceeds half of this limit."""
        if weight.exceeds(FLOOD):
            await self._revoke(
                name,
                f"the node's queue has {weight.bytes} bytes and {weight.entries} entries; "
                f"the limits are {FLOOD.bytes} bytes and {FLOOD.entries} entries",
            )
        elif not weight.exceeds(NEARLY_FLOODED):
            self._swelling.discard(name)
        elif name not in self._swelling:
            self._swelling.add(name)
            log.warning(
                "task_queue_exceeds_half_of_flood_limit",
                node=name,
                bytes=weight.bytes,
                entries=weight.entries,
            )

    async def _count(self) -> None:
        asked = await requires_password(self.redis)
        review = review_connections(await connections(self.redis), password_required=asked)
        # Connections that are too new to be ended do not count as usual: they are checked again at the next turn.
        self._connected.lowest = review.usual
        if review.ended:
            log.warning("excess_or_unauthenticated_redis_connections_closed", count=len(review.ended))
            await redis_nodes.end_connections_by_number(self.redis, review.ended)
        for name, reason in review.floods.items():
            await self._revoke(name, reason)

    async def _revoke(self, name: NodeId, reason: str) -> None:
        log.warning("node_access_revoked_for_flooding_redis", node=name, reason=reason)
        origin = Origin(actor="process:queue_watch", reason="queue flooded", correlation_id=new_uuid())
        try:
            await self.handle(revoke_node(name, f"queue_flooded: {reason}", origin))
        except UnknownName:
            # The user belongs to no node of the ledger, which may have been restored from a backup: remove it.
            await redis_nodes.delete_node_users(self.redis, [name])
        await QueueUsers(self.engine, self.redis).follow(name)
