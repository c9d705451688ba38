"""The complete path from an append to a handler, with two dispatchers, nodes and servers in separate processes."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from pydantic import SecretStr

from bench.dispatch.admitted import admit
from bench.dispatch.dispatcher import DispatcherSettings, Done, Instruction, dispatcher
from bench.dispatch.placements import place
from bench.dispatch.queue_nodes import HandlerStarted, QueueNodeSettings
from bench.harness.bench_process import BenchProcess, bench_process
from bench.harness.servers import migrated_postgres, signing_key, sqlalchemy_url
from control_plane.following.wake import RedisWake
from control_plane.handle import Handle, Wake
from control_plane.settings import Settings
from control_plane.wiring import Plane, plane
from deploy.embedded.redis import RedisServer, running_redis
from events.values import AllocationId, NodeId, allocation_of, new_uuid
from node_agent.transport.broker import QueueAddress

DISPATCHERS: Final = 2
TIMEOUT_SECONDS: Final = 30.0


class CommitClock:
    """Callback after a command's commit: records the time, then wakes the processes that follow the ledger."""

    def __init__(self, wake: Wake) -> None:
        self._wake = wake
        self.at = 0

    async def __call__(self) -> None:
        self.at = time.monotonic_ns()
        await self._wake()


@dataclass(frozen=True, slots=True)
class DispatchPath:
    """The running parts of a dispatch path: database and Redis connections (`Plane`), Redis, queues, dispatchers."""

    plane: Plane
    redis: RedisServer
    queues: Sequence[QueueAddress]
    trusted: str
    dispatchers: Sequence[BenchProcess]

    async def place(self, node: NodeId) -> tuple[AllocationId, int]:
        """Place an allocation. Return its id and the time of its commit (`time.monotonic_ns`)."""
        committed = CommitClock(RedisWake(self.plane.redis))
        allocation = allocation_of(new_uuid())
        await Handle(self.plane.engine, committed)(place(allocation, node))
        return allocation, committed.at

    async def instruct(self, instruction: Instruction) -> None:
        """Send an instruction (`run` or `stop`) to both dispatcher processes, and wait until they have done it."""
        await asyncio.gather(*(each.request(instruction, Done) for each in self.dispatchers))

    @asynccontextmanager
    async def serving(
        self, queues: Sequence[QueueAddress], *, never_finish: bool = False
    ) -> AsyncIterator[BenchProcess]:
        """Run a process that serves the queues of nodes."""
        async with consumer_process(
            "bench.dispatch.queue_nodes", QueueNodeSettings(queues, self.trusted, never_finish)
        ) as process:
            yield process


@asynccontextmanager
async def consumer_process(module: str, what: msgspec.Struct) -> AsyncIterator[BenchProcess]:
    """Run the program `module`, which consumes queues, during a `with` block that begins when the program is ready.

    `what` is its settings. The program writes a `HandlerStarted` line for each task that a handler starts.
    """
    async with bench_process(module) as process:
        await process.request(what, HandlerStarted)
        yield process


async def handler_start(process: BenchProcess, name: str) -> int:
    """Wait until the handler of this allocation or message has started, and return its start (`time.monotonic_ns`).

    Raises `TimeoutError`.
    """
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            started = await process.receive(HandlerStarted)
            if started.allocation_id == name:  # the task sender may re-send an earlier order
                return started.at


@asynccontextmanager
async def dispatch_path(folder: Path, nodes: Sequence[NodeId]) -> AsyncIterator[DispatchPath]:
    """Start all processes of a dispatch path, with its data in `folder`."""
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
        given = DispatcherSettings(sqlalchemy_url(postgres), redis.url, str(key))
        dispatchers = [await opened.enter_async_context(dispatcher(given)) for _ in range(DISPATCHERS)]
        yield DispatchPath(made, redis, queues, signer.public, dispatchers)
