"""`watch`: from a commit to the bytes' arrival at every watcher (promise P15, design section 3).

The API is a process as in a deployment, and so are the one that appends, as the application's role through the
function that the API calls, and the one that holds all the watchers' connections: on two cores everybody takes from
everybody. Each watcher gets every event; a round in which one missed or doubled an event, or in which the events
did not come at their rate, is none and ends the run. In the same round the baseline: the same events at the same rate
into a table of the same shape, and one connection that reads its end and hands it to nobody.
"""

import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

import httpx
from pydantic import SecretStr

from bench import raw
from bench.lines import Told, told
from bench.measure import Bench, Measurement, Pair, Progress, Round, TakeRound, middle, percentile, ratio
from bench.servers import bench_folder, migrated_postgres, signing_key, sqlalchemy_url
from bench.watch_clients import Seen, Watching
from bench.watch_writer import Commit, Turn, Writing
from control_plane.commands.access import issue_key
from control_plane.settings import Settings
from control_plane.wiring import plane
from deploy.embedded.children import Child, python_module
from deploy.embedded.postgres import PostgresServer
from deploy.embedded.redis import RedisServer, running_redis

ROUNDS: Final = 10
EVENTS: Final = 4_000
RATE: Final = 1_000
WATCHERS: Final = 50
CONNECTIONS: Final = 8
WARM_UP: Final = 1_000
CARRIED: Final = 0.95
"""Of the rate; below that a turn shows nothing, and is taken again."""
TRIES: Final = 5
READY_SECONDS: Final = 30.0


class RoundFailed(Exception):
    """A watcher was not sent what it should have been, or the load was never carried."""


class LoadNotCarried(Exception):
    """The machine had other things to do."""


class _Sides:
    """Both sides, ready for one turn after another. A turn's answer is milliseconds from commits to arrivals."""

    def __init__(self, server: PostgresServer, writer: Told, watchers: Told) -> None:
        self._server, self._writer, self._watchers = server, writer, watchers

    async def watched(self, events: int) -> list[float]:
        """Of each event at each watcher."""
        commits = await self._write(Turn(into_ledger=True, events=events, rate=RATE))
        seen = await self._watchers.ask(commits, Seen)
        if seen.faults:
            raise RoundFailed("; ".join(seen.faults))
        return _carried(commits, seen.lags)

    async def tailed(self, events: int) -> list[float]:
        """Of each event at the baseline's one reader."""
        async with told("bench.watch_tailer") as tailer:
            await tailer.ask(self._server.admin_dsn, type(None))
            commits = await self._write(Turn(into_ledger=False, events=events, rate=RATE))
            return _carried(commits, await tailer.ask(commits, list[float]))

    async def _write(self, turn: Turn) -> list[Commit]:
        return await self._writer.ask(turn, list[Commit])


def _carried(commits: Sequence[Commit], lags: list[float]) -> list[float]:
    """The lags, if the load was carried."""
    moments = [moment for _, moment in commits]
    carried = len(commits) / ((max(moments) - min(moments)) / 1e9)
    if carried < RATE * CARRIED:
        raise LoadNotCarried(f"{carried:.0f} events/s were written, not {RATE}")
    return lags


async def _carrying(turn: Callable[[int], Awaitable[list[float]]], events: int) -> list[float]:
    """A turn, taken again while something else kept the machine from carrying its load."""
    for _ in range(TRIES - 1):
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
        writer = await opened.enter_async_context(told("bench.watch_writer"))
        await writer.ask(Writing(server.app_dsn, redis.url, CONNECTIONS), type(None))
        watchers = await opened.enter_async_context(told("bench.watch_clients"))
        await watchers.ask(Watching("127.0.0.1", port, key, WATCHERS), type(None))
        sides = _Sides(server, writer, watchers)
        for turn in (sides.watched, sides.tailed):
            await _carrying(turn, WARM_UP)

        async def take(_number: int, progress: Progress) -> Round:
            ours = await _carrying(sides.watched, EVENTS)
            progress(0.5)
            theirs = await _carrying(sides.tailed, EVENTS)
            progress(1.0)
            return {
                "watchers.p50": [_rank(ours, 50)],
                "watchers.p99": [_rank(ours, 99)],
                "tailer.p99": [_rank(theirs, 99)],
            }

        yield take


async def _key(server: PostgresServer, redis: RedisServer) -> str:
    """An admin's key, made as `issue-key` makes it."""
    key = secrets.token_urlsafe(32)
    settings = Settings(database_url=SecretStr(sqlalchemy_url(server)), redis_url=SecretStr(redis.url))
    async with plane(settings, pool=1) as made:
        await made.handle(issue_key("bench", "admin", sha256(key.encode()).hexdigest()))
    return key


@contextmanager
def _api(server: PostgresServer, redis: RedisServer, folder: Path) -> Iterator[int]:
    """The API as a process; its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    environment = {
        "SLICEPLANE_DATABASE_URL": sqlalchemy_url(server),
        "SLICEPLANE_REDIS_URL": redis.url,
        "SLICEPLANE_LISTEN": f"127.0.0.1:{port}",
        "SLICEPLANE_SIGNING_KEY_FILE": str(signing_key(folder)[0]),
    }
    child = Child("api", python_module("control_plane", "api"), folder / "api.log", environment)
    child.start()
    try:
        _await_answer(port, child)
        yield port
    finally:
        child.stop()


def _await_answer(port: int, child: Child) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            httpx.get(f"http://127.0.0.1:{port}/readyz/postgres", timeout=2).raise_for_status()
        except httpx.TransportError:
            if time.monotonic() > deadline:
                raise RoundFailed(f"the API did not answer: {child.log.read_text()}") from None
            time.sleep(0.05)
        else:
            return


def _rank(lags: Sequence[float], percent: float) -> float:
    return percentile("watch.lag", [{"lags": lags}], "lags", "ms", percent).value


def _results(rounds: Sequence[Round]) -> tuple[Measurement, ...]:
    return (
        middle("watch.lag_p99_ms", rounds, "watchers.p99", "ms"),
        middle("watch.lag_p50_ms", rounds, "watchers.p50", "ms"),
        ratio("watch.lag_ratio_raw", rounds, Pair("watchers.p99", "tailer.p99")),
    )


BENCH: Final = Bench(
    name="watch",
    explanation=f"from a commit to its arrival at {WATCHERS} watchers over HTTP, at {RATE} events/s",
    shape=f"watch {WATCHERS} watchers, {EVENTS} events at {RATE}/s",
    rounds=ROUNDS,
    running=_running,
    results=_results,
)
