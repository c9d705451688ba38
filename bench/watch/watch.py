"""`watch`: time from a commit to the arrival of its bytes at every watcher (promise P15, design section 3).

API, writer and watchers run in three processes. The API runs as in a deployment. The writer appends as the
application's role, with the function that the API calls. The third process holds the connections of all watchers. On
two cores they compete with each other. Each watcher receives every event; a missed or duplicated event, or a rate that
is too low, ends the run. In the same round the baseline writes the same events at the same rate into a table with the
same columns, and one connection reads the end of this table without passing the events on.
"""

import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final

import httpx
from pydantic import SecretStr

from bench.harness.bench_process import BenchProcess, bench_process
from bench.harness.measure import (
    Bench,
    Measurement,
    Pair,
    Progress,
    Round,
    TakeRound,
    percentile,
    pooled_median,
    ratio,
)
from bench.harness.servers import bench_folder, migrated_postgres, signing_key, sqlalchemy_url
from bench.ledger import raw
from bench.watch.clients import Arrivals, WatcherSettings
from bench.watch.writer import Commit, Turn, WriterSettings
from control_plane.commands.access import issue_first_key
from control_plane.programs import SERVER, Program
from control_plane.settings import Settings
from control_plane.wiring import plane
from deploy.embedded.children import Child, installed_program
from deploy.embedded.postgres import PostgresServer
from deploy.embedded.redis import RedisServer, running_redis
from deploy.embedded.stack import await_api

ROUNDS: Final = 10
EVENTS: Final = 4_000
RATE: Final = 1_000
WATCHERS: Final = 50
CONNECTIONS: Final = 8
WARM_UP: Final = 1_000
MINIMUM_SHARE: Final = 0.95
"""Minimum fraction of the rate; a slower turn is invalid and is repeated."""
ATTEMPTS: Final = 5


class RoundFailed(Exception):
    """A watcher missed or duplicated an event, or the API did not start."""


class LoadNotCarried(Exception):
    """The benchmark wrote events at a rate that is too low, because the machine was busy with other work."""


class _Sides:
    """The watch of the ledger over HTTP, and its baseline, a reader of a plain table in SQL.

    Each method measures one of them and returns the milliseconds from the commit to the arrival of each event.
    """

    def __init__(self, server: PostgresServer, writer: BenchProcess, watchers: BenchProcess) -> None:
        self._server, self._writer, self._watchers = server, writer, watchers

    async def watched(self, events: int) -> list[float]:
        """Write events to the ledger. Return milliseconds from each event's commit to its arrival at each watcher."""
        commits = await self._write(Turn(into_ledger=True, events=events, rate=RATE))
        seen = await self._watchers.request(commits, Arrivals)
        if seen.faults:
            raise RoundFailed("; ".join(seen.faults))
        return _carried(commits, seen.lags)

    async def tailed(self, events: int) -> list[float]:
        """Write events to the raw table. Return milliseconds from each event's commit to its arrival at the reader."""
        async with bench_process("bench.watch.tailer") as tailer:
            await tailer.request(self._server.admin_dsn, type(None))
            commits = await self._write(Turn(into_ledger=False, events=events, rate=RATE))
            return _carried(commits, await tailer.request(commits, list[float]))

    async def _write(self, turn: Turn) -> list[Commit]:
        return await self._writer.request(turn, list[Commit])


def _carried(commits: Sequence[Commit], lags: list[float]) -> list[float]:
    """Check the rate at which the events were written, and return `lags`. Raises `LoadNotCarried` if it was too low."""
    moments = [moment for _, moment in commits]
    carried = len(commits) / ((max(moments) - min(moments)) / 1e9)
    if carried < RATE * MINIMUM_SHARE:
        raise LoadNotCarried(
            f"{carried:.0f} events/s were written instead of {RATE}; repeat on an idle machine"
        )
    return lags


async def _carrying(turn: Callable[[int], Awaitable[list[float]]], events: int) -> list[float]:
    """Run a turn, and repeat it if events were written too slowly. Raises `LoadNotCarried` after the last attempt."""
    for _ in range(ATTEMPTS - 1):
        with suppress(LoadNotCarried):
            return await turn(events)
    return await turn(events)


@asynccontextmanager
async def _running() -> AsyncIterator[TakeRound]:
    async with AsyncExitStack() as opened:
        folder = opened.enter_context(bench_folder())
        server = opened.enter_context(migrated_postgres(folder))
        redis = opened.enter_context(running_redis(folder / "redis"))
        raw.make_tables(server.admin_dsn)
        key = await _key(server, redis)
        port = opened.enter_context(_api(server, redis, folder))
        writer = await opened.enter_async_context(bench_process("bench.watch.writer"))
        await writer.request(WriterSettings(server.app_dsn, redis.url, CONNECTIONS), type(None))
        watchers = await opened.enter_async_context(bench_process("bench.watch.clients"))
        await watchers.request(WatcherSettings("127.0.0.1", port, key, WATCHERS), type(None))
        sides = _Sides(server, writer, watchers)
        for turn in (sides.watched, sides.tailed):
            await _carrying(turn, WARM_UP)

        async def take(_number: int, progress: Progress) -> Round:
            ledger = await _carrying(sides.watched, EVENTS)
            progress(0.5)
            baseline = await _carrying(sides.tailed, EVENTS)
            progress(1.0)
            return {
                "watchers.p50": [_rank(ledger, 50)],
                "watchers.p99": [_rank(ledger, 99)],
                "tailer.p99": [_rank(baseline, 99)],
            }

        yield take


async def _key(server: PostgresServer, redis: RedisServer) -> str:
    """Create an API key of an admin, as the command `issue-key` does, and return it."""
    key = secrets.token_urlsafe(32)
    settings = Settings(database_url=SecretStr(sqlalchemy_url(server)), redis_url=SecretStr(redis.url))
    async with plane(settings, pool=1) as made:
        await made.handle(issue_first_key("bench", sha256(key.encode()).hexdigest()))
    return key


@contextmanager
def _api(server: PostgresServer, redis: RedisServer, folder: Path) -> Iterator[int]:
    """Run the API as a separate process, and yield its TCP port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    environment = {
        "SLICEPLANE_DATABASE_URL": sqlalchemy_url(server),
        "SLICEPLANE_REDIS_URL": redis.url,
        "SLICEPLANE_LISTEN": f"127.0.0.1:{port}",
        "SLICEPLANE_SIGNING_KEY_FILE": str(signing_key(folder)[0]),
    }
    child = Child("api", installed_program(SERVER, Program.API), folder / "api.log", environment)
    child.start()
    try:
        await_api(f"http://127.0.0.1:{port}", httpx.create_ssl_context(), folder, partial(check_runs, child))
        yield port
    finally:
        child.stop()


def check_runs(child: Child) -> None:
    """Check that the API runs. Raises `RoundFailed` with its log."""
    if child.status is not None:
        raise RoundFailed(f"the API exited with status {child.status}; its log:\n{child.log.read_text()}")


def _rank(lags: Sequence[float], percent: float) -> float:
    return percentile("watch.lag", [{"lags": lags}], "lags", "ms", percent).value


def _results(rounds: Sequence[Round]) -> tuple[Measurement, ...]:
    return (
        pooled_median("watch.lag_p99_ms", rounds, "watchers.p99", "ms"),
        pooled_median("watch.lag_p50_ms", rounds, "watchers.p50", "ms"),
        ratio("watch.lag_ratio_raw", rounds, Pair("watchers.p99", "tailer.p99")),
    )


BENCH: Final = Bench(
    name="watch",
    explanation=f"time from a commit to its arrival at {WATCHERS} watchers over HTTP, at {RATE} events/s",
    shape=f"watch {WATCHERS} watchers, {EVENTS} events at {RATE}/s",
    rounds=ROUNDS,
    running=_running,
    results=_results,
)
