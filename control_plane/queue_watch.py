"""Keep one node from exhausting Redis: a node that writes, holds or uses far more than its work requires is
revoked.

What a node writes under its own keys cannot be checked beforehand, and Redis' memory, time and connections are shared
by all. So queues are weighed in turns, each once in two minutes, and all of them at once whenever what Redis keeps has
grown by a small part of a flood; connections are counted by the same two rules. The bounds lie above all that a node
can be sent or needs. What a single connection may make Redis hold is bounded by Redis itself
(`deploy.embedded.redis`). A command of a million words leaves nothing behind and delays every client for seconds: our
scripts refuse it, and the slow log names its sender. An endless stream of short commands is found by
sampling commands while Redis is busy (`control_plane.queue_time`).

A flood ends the way in which admins revoke: one fact, whichever process found it first, then the node's user, its
connections and its keys. A crash in between leaves the rest to `QueueUsers.follow_all`. What other nodes were to get
and Redis had no room for is still due, and sent again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog
from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import AsyncEngine

from control_plane import redis_nodes
from control_plane.commands.identity import revoke_node
from control_plane.decisions.refusals import UnknownName
from control_plane.handle import Handle
from control_plane.origin import Origin
from control_plane.queue_time import TimeWatch
from control_plane.queue_users import QueueUsers
from control_plane.queue_weights import (
    FLOOD,
    SWELLING,
    Weight,
    connections,
    crowd_of,
    is_password_asked,
    weights,
    wordy,
)
from control_plane.redis_nodes import RedisAway
from events.values import NodeId, new_uuid
from read_models import nodes

log = structlog.get_logger()
GROWN_BYTES: Final = 2 << 20
GROWN_CONNECTIONS: Final = 64
ROUND: Final = 120
"""Turns in which each queue is weighed once."""


@dataclass(slots=True)
class Growth:
    """Notices when something has grown by a step since it was at its lowest."""

    step: int
    lowest: int | None = None

    def noticed(self, now: int) -> bool:
        if self.lowest is None or now - self.lowest >= self.step:
            self.lowest = now
            return True
        self.lowest = min(self.lowest, now)
        return False


@dataclass(slots=True)
class QueueWatch:
    """It remembers where its round is and what was usual. Two that watch do no harm."""

    engine: AsyncEngine
    redis: Redis
    handle: Handle
    _turn: int = -1
    _nodes: list[NodeId] = field(default_factory=list)
    _kept: Growth = field(default_factory=lambda: Growth(GROWN_BYTES))
    _on_the_way: Growth = field(default_factory=lambda: Growth(GROWN_BYTES))
    _connected: Growth = field(default_factory=lambda: Growth(GROWN_CONNECTIONS))
    _swelling: set[NodeId] = field(default_factory=set)

    _time: TimeWatch = field(init=False)

    def __post_init__(self) -> None:
        self._time = TimeWatch(self.redis)

    async def look(self) -> None:
        """A turn, of which there is one a second. What a Redis that is away does not say is asked at the next."""
        self._turn = (self._turn + 1) % ROUND
        try:
            said = await redis_nodes.usage(self.redis)
            for name, words in (await wordy(self.redis)).items():
                await self._revoke(name, f"{words} words in one command")
            for name, why in (await self._time.look(said.cpu_seconds)).items():
                await self._revoke(name, why)
            grown = self._kept.noticed(said.kept_bytes)
            crowded = (
                self._connected.noticed(said.connections),
                self._on_the_way.noticed(said.connection_bytes),
            )
            if grown or self._turn == 0:
                self._nodes = await self._enrolled()
            await self._weigh(self._nodes if grown else self._nodes[self._turn :: ROUND])
            if any(crowded) or self._turn == 0:
                await self._count()
        except RedisAway as error:
            log.warning("redis_away", error=error.reason)

    async def _enrolled(self) -> list[NodeId]:
        """Everybody with a queue."""
        async with self.engine.connect() as conn:
            return await nodes.enrolled(conn)

    async def _weigh(self, names: Sequence[NodeId]) -> None:
        for name, weight in (await weights(self.redis, names)).items():
            await self._judge(name, weight)

    async def _judge(self, name: NodeId, weight: Weight) -> None:
        """Revoke a node whose queue is a flood; tell of one that begins to swell, and not again while it goes on."""
        if weight.exceeds(FLOOD):
            await self._revoke(name, f"{weight.bytes} bytes and {weight.entries} entries in its queue")
        elif not weight.exceeds(SWELLING):
            self._swelling.discard(name)
        elif name not in self._swelling:
            self._swelling.add(name)
            log.warning("queue_swells", node=name, bytes=weight.bytes, entries=weight.entries)

    async def _count(self) -> None:
        asked = await is_password_asked(self.redis)
        crowd = crowd_of(await connections(self.redis), password_asked=asked)
        # Whoever is too new to be turned out is not usual: he is looked for again at the next turn.
        self._connected.lowest = crowd.usual
        if crowd.ended:
            log.warning("connections_ended", count=len(crowd.ended))
            await redis_nodes.end_by_number(self.redis, crowd.ended)
        for name, why in crowd.floods.items():
            await self._revoke(name, why)

    async def _revoke(self, name: NodeId, why: str) -> None:
        log.warning("queue_flooded", node=name, why=why)
        origin = Origin(actor="process:queue_watch", why="queue flooded", correlation_id=new_uuid())
        try:
            await self.handle(revoke_node(name, f"queue_flooded: {why}", origin))
        except UnknownName:
            # A user of Redis that is nobody's node, of a ledger that was restored since: it has no business there.
            await redis_nodes.shut_out(self.redis, [name])
        await QueueUsers(self.engine, self.redis).follow(name)
