"""`access`: what authentication and the access log cost a GET of one allocation (throughput of an API process), and
what a flood of requests by one project costs the callers of others (`bench.access.flood`).

One API process serves three kinds of requests (`bench.access.sides`): authenticated and recorded, as in a deployment;
authenticated, and not recorded; and neither. One client process keeps a number of requests of one kind in progress at a
time; the turns of a round alternate. The rate of requests is not limited; in the flood it is. On two cores, the API,
Postgres and the client compete with each other, so the processor time of each of them counts.
"""

import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

from pydantic import SecretStr

from bench.access import flood
from bench.access.clients import ClientSettings, Turn
from bench.access.served import admin_key, api
from bench.access.sides import RECORDED, SIDES, UNAUTHENTICATED, UNRECORDED
from bench.dispatch.placements import place
from bench.harness.bench_process import BenchProcess, bench_process
from bench.harness.measure import Bench, Measurement, Pair, Progress, Round, TakeRound, ratio
from bench.harness.servers import bench_folder, migrated_postgres, sqlalchemy_url
from control_plane.settings import Settings
from control_plane.wiring import plane
from deploy.embedded.postgres import PostgresServer
from deploy.embedded.redis import RedisServer, running_redis
from events.values import allocation_of, new_uuid, node_id

ROUNDS: Final = 10
SECONDS: Final = 1.0
REPETITIONS: Final = 4
"""Number of times that a round measures all sides in both orders, because the speed of a machine changes within
seconds.
"""
CONNECTIONS: Final = 32
WARM_UP_SECONDS: Final = 2.0


_API: Final = (sys.executable, "-m", "bench.access.sides")


@asynccontextmanager
async def _running() -> AsyncIterator[TakeRound]:
    async with _costs() as costs, flood.running() as flooding:

        async def take(number: int, progress: Progress) -> Round:
            found = await costs(number, lambda share: progress(share / 2))
            return {**found, **await flooding(number, lambda share: progress((1 + share) / 2))}

        yield take


@asynccontextmanager
async def _costs() -> AsyncIterator[TakeRound]:
    """Run the API process and its client; yield the function that measures one round."""
    async with AsyncExitStack() as opened:
        folder = opened.enter_context(bench_folder())
        server = opened.enter_context(migrated_postgres(folder))
        redis = opened.enter_context(running_redis(folder / "redis"))
        key, allocation = await _placed(server, redis)
        port = opened.enter_context(_api(server, redis, folder))
        client = await opened.enter_async_context(bench_process("bench.access.clients"))
        settings = ClientSettings("127.0.0.1", port, CONNECTIONS, key, f"/v1/allocations/{allocation}")
        await client.request(settings, type(None))
        for side in SIDES:
            await _rate(client, side, WARM_UP_SECONDS)

        async def take(_number: int, progress: Progress) -> Round:
            turns = [*SIDES, *reversed(SIDES)] * REPETITIONS
            found: dict[str, list[float]] = {side: [] for side in SIDES}
            for done, side in enumerate(turns, 1):
                found[side].append(await _rate(client, side, SECONDS))
                progress(done / len(turns))
            return found

        yield take


async def _rate(client: BenchProcess, side: str, seconds: float) -> float:
    """Return the number of answered requests per second."""
    return await client.request(Turn(side, seconds), float)


async def _placed(server: PostgresServer, redis: RedisServer) -> tuple[str, str]:
    """Create an admin's API key and an allocation; return the key and the allocation's id."""
    allocation = allocation_of(new_uuid())
    settings = Settings(database_url=SecretStr(sqlalchemy_url(server)), redis_url=SecretStr(redis.url))
    async with plane(settings, pool=1) as made:
        key = await admin_key(made)
        await made.handle(place(allocation, node_id("bench-1")))
    return key, allocation


@contextmanager
def _api(server: PostgresServer, redis: RedisServer, folder: Path) -> Iterator[int]:
    """Run the API process, and yield its TCP port."""
    own = folder / "api"
    own.mkdir()
    settings = {"SLICEPLANE_AUDIT_READS": "1", "SLICEPLANE_REQUESTS_PER_MINUTE": "0"}
    with api(server, redis, own, settings, _API) as port:
        yield port


def _results(rounds: Sequence[Round]) -> tuple[Measurement, ...]:
    return (
        ratio("access.audit_ratio", rounds, Pair(UNRECORDED, RECORDED)),
        ratio("access.overhead_ratio", rounds, Pair(UNAUTHENTICATED, UNRECORDED)),
        *flood.results(rounds),
    )


BENCH: Final = Bench(
    name="access",
    explanation="throughput of a GET without the access log against that with it, and without authentication against "
    "that with it; p99 latency of callers while another project floods the API against that without a flood",
    shape=f"access {CONNECTIONS} connections, {REPETITIONS} x {SECONDS} s, {flood.SHAPE}",
    rounds=ROUNDS,
    running=_running,
    results=_results,
)
