"""`replay`: the ledger read back to typed events, against its bare rows (design section 7).

One ledger of a fleet's history is filled once; then every side reads all of it in each round, in an order that turns
with the rounds. `typed` is what projections, rebuilds and checks can stand on: `events.replay` on an asynchronous
connection, each event a `Recorded` fact. `copy` is PostgreSQL's own COPY of the same rows and columns by psycopg, whose
blocks are thrown away undecoded: as text and as binary, on a blocking connection and on an asynchronous one, and what
counts is the fastest of the four. `eventsourcing` is the package of that name, with as many events of its
own, from its notification log through its mapper.
"""

import asyncio
import gc
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from statistics import median
from typing import Final, NamedTuple

import psycopg
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from bench import eventsourced, raw
from bench.histories import History
from bench.measure import Bench, Measurement, Pair, Progress, Round, TakeRound, middle, pooled, ratio
from bench.servers import bench_folder, migrated_postgres, sqlalchemy_url
from control_plane.projector.advance import Advance
from control_plane.projector.rebuild import BATCH as REBUILD_BATCH
from control_plane.projector.rebuild import empty
from events.replay import replay
from events.tail import Tail
from events.values import Position
from read_models import checkpoints
from read_models.generations import IDLE, turn_to
from read_models.projections import PROJECTIONS

EVENTS: Final = 200_000
ROUNDS: Final = 11
COPIES: Final = ("copy.text", "copy.binary", "copy.blocking_text", "copy.blocking_binary")
_END: Final = Position(2**62)
_TELL_EVERY: Final = 0.25


class Side(NamedTuple):
    """A way to read everything there is; it returns how many events that were. `prepare` comes before the clock."""

    series: str
    read: Callable[[], Awaitable[int]]
    prepare: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(0)


async def typed(conn: psycopg.AsyncConnection) -> int:
    count = 0
    async for events in replay(conn, Position(0), _END):
        count += len(events)
    return count


async def projected(engine: AsyncEngine, tail: Tail) -> int:
    """Into the idle set of every read model, as a rebuild fills it; emptied when it is done."""
    projections = list(PROJECTIONS.values())
    advance = Advance(engine, tail, projections, IDLE, REBUILD_BATCH)
    await advance.begin()
    await advance.stream()
    return advance.position


async def emptied(engine: AsyncEngine) -> None:
    projections = list(PROJECTIONS.values())
    async with engine.begin() as conn:
        await empty(conn, projections)
        await turn_to(conn, IDLE)
        for each in projections:
            await checkpoints.begin(conn, each.name, Position(0))


async def copied(conn: psycopg.AsyncConnection, copy_format: str) -> int:
    count = 0
    async with conn.cursor() as cursor, cursor.copy(raw.copy_out(copy_format)) as copy:
        async for _block in copy:
            count += 1
    return count


async def copied_blocking(conn: psycopg.Connection, copy_format: str) -> int:
    count = 0
    with conn.cursor() as cursor, cursor.copy(raw.copy_out(copy_format)) as copy:
        for _block in copy:
            count += 1
    return count


async def read_by_the_package(application: eventsourced.Slices) -> int:
    return eventsourced.read(application)


@asynccontextmanager
async def _running() -> AsyncIterator[TakeRound]:
    async with AsyncExitStack() as opened:
        server = opened.enter_context(migrated_postgres(opened.enter_context(bench_folder())))
        await History(server.app_dsn).grow(EVENTS, _Told("recording a fleet's history"))
        package = opened.enter_context(eventsourced.eventsourced(server))
        eventsourced.record(package, EVENTS, _Told("recording as many with eventsourcing"))
        connection = await psycopg.AsyncConnection.connect(server.app_dsn, autocommit=True)
        conn = await opened.enter_async_context(connection)
        blocking = opened.enter_context(psycopg.connect(server.app_dsn, autocommit=True))
        engine = create_async_engine(sqlalchemy_url(server))
        opened.push_async_callback(engine.dispose)
        tail = Tail(server.app_dsn)
        opened.push_async_callback(tail.close)
        reads = (
            partial(copied, conn, "text"),
            partial(copied, conn, "binary"),
            partial(copied_blocking, blocking, "text"),
            partial(copied_blocking, blocking, "binary"),
        )
        sides = (
            Side("typed", partial(typed, conn)),
            *map(Side, COPIES, reads),
            Side("projected", partial(projected, engine, tail), partial(emptied, engine)),
            Side("eventsourcing", partial(read_by_the_package, package)),
        )
        for side in sides:  # caches of the server and of the system are warm in every round
            await side.prepare()
            await side.read()

        async def take(number: int, progress: Progress) -> Round:
            turned = sides[number % len(sides) :] + sides[: number % len(sides)]
            return await _round(turned, progress)

        yield take


async def _round(sides: Sequence[Side], progress: Progress) -> Round:
    rates: dict[str, list[float]] = {}
    for done, side in enumerate(sides):
        progress(done / len(sides))
        await side.prepare()
        gc.collect()
        began = time.perf_counter()
        count = await side.read()
        rates[side.series] = [count / (time.perf_counter() - began)]
    progress(1.0)
    return rates


def _results(rounds: Sequence[Round]) -> tuple[Measurement, ...]:
    copy = max(COPIES, key=lambda series: median(pooled(rounds, series)))
    return (
        ratio("replay.typed.ratio_copy", rounds, Pair("typed", copy)),
        ratio("replay.projected.ratio_copy", rounds, Pair("projected", copy)),
        ratio("replay.typed.ratio_eventsourcing", rounds, Pair("typed", "eventsourcing")),
        middle("replay.typed.rate", rounds, "typed", "events/s"),
        middle("replay.projected.rate", rounds, "projected", "events/s"),
        middle("replay.copy.rate", rounds, copy, "events/s"),
        middle("replay.eventsourcing.rate", rounds, "eventsourcing", "events/s"),
    )


class _Told:
    """Tells how far the filling is, a line for each quarter."""

    def __init__(self, what: str) -> None:
        self._what, self._next = what, 0.0

    def __call__(self, done: float) -> None:
        if done >= self._next:
            self._next = done + _TELL_EVERY
            sys.stderr.write(f"replay: {self._what}, {done:.0%} of {EVENTS:,} events\n")


BENCH: Final = Bench(
    name="replay",
    explanation="the ledger read back to typed events, against COPY of its bare rows",
    shape=f"replay {EVENTS} events",
    rounds=ROUNDS,
    running=_running,
    results=_results,
)
