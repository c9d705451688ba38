"""The whole road from an append to a handler, as deployed: two dispatchers, nodes and servers in processes of their
own.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from pydantic import SecretStr

from bench.admitted import admit
from bench.dispatcher import Dispatching, Done, dispatcher
from bench.lines import Told, told
from bench.placements import place
from bench.queue_nodes import Begun, Serving
from bench.servers import migrated_postgres, signing_key, sqlalchemy_url
from control_plane.handle import Handle, Wake
from control_plane.settings import Settings
from control_plane.wake import RedisWake
from control_plane.wiring import Plane, plane
from deploy.embedded.redis import RedisServer, running_redis
from events.values import AllocationId, NodeId, allocation_of, new_uuid
from tasks.broker import QueueAddress

DISPATCHERS: Final = 2
PATIENCE: Final = 30.0


class CommitNoted:
    """Notes the moment at which it is called, which is the first thing after a commit."""

    def __init__(self, wake: Wake) -> None:
        self._wake = wake
        self.at = 0

    async def __call__(self) -> None:
        self.at = time.monotonic_ns()
        await self._wake()


@dataclass(frozen=True, slots=True)
class Road:
    """Servers, a plane of the API's kind, the queues of admitted nodes, and the dispatchers."""

    made: Plane
    redis: RedisServer
    queues: Sequence[QueueAddress]
    trusted: str
    dispatchers: Sequence[Told]

    async def place(self, node: NodeId) -> tuple[AllocationId, int]:
        """Place an allocation; also says when its commit was done."""
        committed = CommitNoted(RedisWake(self.made.redis))
        allocation = allocation_of(new_uuid())
        await Handle(self.made.engine, committed)(place(allocation, node))
        return allocation, committed.at

    async def tell(self, word: str) -> None:
        """Have both dispatchers `run` or `stop`."""
        await asyncio.gather(*(each.ask(word, Done) for each in self.dispatchers))

    @asynccontextmanager
    async def serving(self, queues: Sequence[QueueAddress], *, for_ever: bool = False) -> AsyncIterator[Told]:
        """A process that serves nodes' queues."""
        async with consuming("bench.queue_nodes", Serving(queues, self.trusted, for_ever)) as process:
            yield process


@asynccontextmanager
async def consuming(module: str, what: msgspec.Struct) -> AsyncIterator[Told]:
    """A process that is ready to say what it begins."""
    async with told(module) as process:
        await process.ask(what, Begun)
        yield process


async def begin_of(process: Told, name: str) -> int:
    """When its handler began with this. Raises `TimeoutError` when it does not."""
    async with asyncio.timeout(PATIENCE):
        while True:
            begun = await process.hear(Begun)
            if begun.allocation_id == name:  # the sweeper may send an older one again
                return begun.at


@asynccontextmanager
async def road(folder: Path, nodes: Sequence[NodeId]) -> AsyncIterator[Road]:
    """In a folder that is made for it."""
    async with AsyncExitStack() as opened:
        postgres = opened.enter_context(migrated_postgres(folder))
        redis = opened.enter_context(running_redis(folder / "redis"))
        key, signer = signing_key(folder)
        settings = Settings(
            database_url=SecretStr(sqlalchemy_url(postgres)),
            redis_url=SecretStr(redis.url),
            signing_key_file=key,
            deadline_grace_seconds=0.0,
        )
        made = await opened.enter_async_context(plane(settings))
        queues = await admit(made, redis, nodes)
        given = Dispatching(sqlalchemy_url(postgres), redis.url, str(key))
        dispatchers = [await opened.enter_async_context(dispatcher(given)) for _ in range(DISPATCHERS)]
        yield Road(made, redis, queues, signer.public, dispatchers)
