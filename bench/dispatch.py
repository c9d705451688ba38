"""`dispatch`: from an append's commit to the first line of the handler on an idle node (TSK-6, design section 7).

The whole road: the API's `handle`, the dispatcher with its relay and its ticks in this process, Postgres, Redis, and a
node's broker and worker in a process of their own, as on a host. Between two samples everything falls idle for a
random while, so that samples meet the polls and the ticks at any phase. The clock starts when `handle`, with its commit
done and nothing else after it, wakes the followers; it is one for all processes of the machine.
"""

import asyncio
import contextlib
import random
import secrets
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec
import structlog
from pydantic import SecretStr

from bench.measure import Bench, Measurement, Progress, Round, TakeRound, percentile
from bench.node import READY, Begun
from bench.placements import place
from bench.servers import bench_folder, migrated_postgres, sqlalchemy_url
from control_plane.commands.nodes import enrol_node, expect_node
from control_plane.followers import run_dispatcher
from control_plane.handle import Handle, Wake
from control_plane.origin import Origin
from control_plane.redis_nodes import NodeLogin, ensure_node_user, ensure_scripts, user_name
from control_plane.settings import Settings
from control_plane.wake import RedisWake
from control_plane.wiring import Plane, plane
from deploy.embedded.redis import RedisServer, running_redis
from events.values import AllocationId, NodeId, allocation_of, new_uuid
from tasks.agent_api import Enrolment
from tasks.broker import QueueAddress
from tasks.scripts import namespace_of

ROUNDS: Final = 10
SAMPLES: Final = 24
WARM_UP: Final = 5
IDLE_SECONDS: Final = (0.3, 1.2)
"""Between samples, evenly spread: followers poll once a second when idle, and so do the dispatcher's ticks."""
PATIENCE: Final = 20.0
NODE: Final = NodeId("bench-a")
_REPOSITORY: Final = Path(__file__).resolve().parents[1]


class _CommitNoted:
    """Notes the moment at which it is called, which is the first thing after a commit."""

    def __init__(self, wake: Wake) -> None:
        self._wake = wake
        self.at = 0

    async def __call__(self) -> None:
        self.at = time.monotonic_ns()
        await self._wake()


class _Road:
    """The whole road, ready for one placement after another."""

    def __init__(self, made: Plane, begun: asyncio.StreamReader) -> None:
        self._committed = _CommitNoted(RedisWake(made.redis))
        self._handle = Handle(made.engine, self._committed)
        self._begun = begun

    async def sample(self) -> float:
        """Milliseconds from commit to the handler's first line. Raises `TimeoutError` when it does not come."""
        allocation = allocation_of(new_uuid())
        await self._handle(place(allocation, NODE))
        async with asyncio.timeout(PATIENCE):
            return (await self._begin_of(allocation) - self._committed.at) / 1e6

    async def _begin_of(self, allocation: AllocationId) -> int:
        while line := await self._begun.readline():
            begun = msgspec.json.decode(line, type=Begun)
            if begun.allocation_id == allocation:  # the sweeper may send an older one again
                return begun.at
        raise EOFError("the node ended")

    async def round(self, progress: Progress, samples: int) -> Round:
        found: list[float] = []
        for number in range(samples):
            progress(number / samples)
            await asyncio.sleep(random.uniform(*IDLE_SECONDS))
            found.append(await self.sample())
        return {"idle": found}


@asynccontextmanager
async def _running() -> AsyncIterator[TakeRound]:
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(
            30
        ),  # warnings: a line for each order hides the progress
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )
    async with AsyncExitStack() as opened:
        folder = opened.enter_context(bench_folder())
        postgres = opened.enter_context(migrated_postgres(folder))
        redis = opened.enter_context(running_redis(folder / "redis"))
        settings = Settings(
            database_url=SecretStr(sqlalchemy_url(postgres)),
            redis_url=SecretStr(redis.url),
            deadline_grace_seconds=0.0,
        )
        made = await opened.enter_async_context(plane(settings))
        address = await _enrol(made, redis)
        await opened.enter_async_context(_dispatching(made))
        road = _Road(made, await opened.enter_async_context(_node(address)))
        await road.round(lambda _done: None, WARM_UP)

        async def take(_number: int, progress: Progress) -> Round:
            return await road.round(progress, SAMPLES)

        yield take


async def _enrol(made: Plane, redis: RedisServer) -> QueueAddress:
    """Admit the node as an admin and its agent would, and return where it finds its orders."""
    token, password = secrets.token_hex(16), secrets.token_hex(16)
    origin = Origin(actor="key:bench", why="bench", correlation_id=new_uuid())
    await made.handle(expect_node(NODE, token, origin))
    digest = sha256(password.encode()).hexdigest()
    enrolment = Enrolment(
        node_id=NODE,
        token=token,
        credential_sha256=digest,
        queue_password_sha256=digest,
        agent_version="bench",
    )
    await made.handle(enrol_node(enrolment, origin))
    await ensure_scripts(made.redis)
    await ensure_node_user(made.redis, NodeLogin(NODE, digest))
    return QueueAddress(redis.address, redis.port, user_name(NODE), password, namespace_of(NODE))


@asynccontextmanager
async def _dispatching(made: Plane) -> AsyncIterator[None]:
    """The dispatcher, while the block lasts; its failure ends the block."""
    async with asyncio.TaskGroup() as group:
        dispatcher = group.create_task(run_dispatcher(made))
        try:
            yield
        finally:
            dispatcher.cancel()


@asynccontextmanager
async def _node(address: QueueAddress) -> AsyncIterator[asyncio.StreamReader]:
    """A node's process, and the lines that it says."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.node"),
        cwd=_REPOSITORY,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # a Ctrl-C is ours to turn into an orderly end
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(msgspec.json.encode(address) + b"\n")
        async with asyncio.timeout(PATIENCE):
            if (await process.stdout.readline()).decode().strip() != READY:
                raise EOFError("the node did not start")
        yield process.stdout
    finally:
        await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Its standard input ends, and so does it; or by force when it does not."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(PATIENCE):
            await process.communicate()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _results(rounds: Sequence[Round]) -> tuple[Measurement, ...]:
    return (
        percentile("dispatch.idle_p50_ms", rounds, "idle", "ms", 50),
        percentile("dispatch.idle_p99_ms", rounds, "idle", "ms", 99),
    )


BENCH: Final = Bench(
    name="dispatch",
    explanation="from a commit to the first line of the handler on an idle node",
    shape=f"dispatch {SAMPLES} samples, idle for {IDLE_SECONDS} s",
    rounds=ROUNDS,
    running=_running,
    results=_results,
)
