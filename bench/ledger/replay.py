"""`replay`: read the ledger back into typed events, compared with its raw rows (design section 7).

One ledger with a fleet's history is filled once. In each round every side reads all of it; the order rotates from round
to round. `typed` is `events.ledger.replay` on an asynchronous connection, which projections, rebuilds and checks use;
each event becomes a `Recorded` object. `projected` fills the read models `COMPARED`, as a rebuild does, and
`projected_all` fills all read models. `copy` is PostgreSQL's own COPY of the same rows and columns with psycopg, which
discards the blocks without decoding: as text and as binary, on a blocking and on an asynchronous connection. The
fastest of the four counts. `eventsourcing` is the package of that name, which reads the same number of its own events
from its notification log through its mapper.
"""

import asyncio
import gc
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from statistics import median
from typing import Final, NamedTuple

import psycopg
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from bench.harness.measure import (
    Bench,
    Measurement,
    Pair,
    Progress,
    Round,
    TakeRound,
    pooled,
    pooled_median,
    ratio,
)
from bench.harness.servers import bench_folder, migrated_postgres, sqlalchemy_url
from bench.ledger import eventsourced, raw
from bench.ledger.histories import History
from control_plane.projector.advance import Advance
from control_plane.projector.rebuild import BATCH as REBUILD_BATCH
from control_plane.projector.rebuild import empty
from control_plane.wiring import reduce_garbage_collection
from events.ledger.replay import replay
from events.ledger.tail import Tail
from events.values import Position
from read_models import checkpoints
from read_models.generations import IDLE, use_table_set
from read_models.projections import PROJECTIONS

COMPARED: Final = ("nodes", "slots", "keys", "allocations", "holdings")
"""The read models of the side `projected`. The other read models need several times their processor time, in Postgres
too, which writes and indexes their rows (docs/decisions/0063).
"""
EVENTS: Final = 200_000
ROUNDS: Final = 11
COPIES: Final = ("copy.text", "copy.binary", "copy.blocking_text", "copy.blocking_binary")
_END: Final = Position(2**62)
_PROGRESS_STEP: Final = 0.25


class ReadSide(NamedTuple):
    """A compared way to read all events; `read` returns their number, and `prepare` runs before the clock starts."""

    series: str
    read: Callable[[], Awaitable[int]]
    prepare: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(0)


async def typed(conn: psycopg.AsyncConnection) -> int:
    count = 0
    async for events in replay(conn, Position(0), _END):
        count += len(events)
    return count


async def projected(engine: AsyncEngine, tail: Tail, names: Iterable[str]) -> int:
    """Project all events into the idle tables of the named read models, as a rebuild does. Return the position reached.

    `emptied` must clear the tables first.
    """
    advance = Advance(engine, tail, [PROJECTIONS[name] for name in names], IDLE, REBUILD_BATCH)
    await advance.begin()
    await advance.stream()
    return advance.position


async def emptied(engine: AsyncEngine) -> None:
    """Empty the idle tables of every read model and reset their checkpoints."""
    projections = list(PROJECTIONS.values())
    async with engine.begin() as conn:
        await empty(conn, projections)
        await use_table_set(conn, IDLE)
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


async def read_with_eventsourcing(application: eventsourced.SliceApplication) -> int:
    return eventsourced.read(application)


@asynccontextmanager
async def _running() -> AsyncIterator[TakeRound]:
    reduce_garbage_collection()  # as in the programs of the control plane
    async with AsyncExitStack() as opened:
        server = opened.enter_context(migrated_postgres(opened.enter_context(bench_folder())))
        await History(server.app_dsn).grow(EVENTS, _FillProgress("recording a fleet's history"))
        package = opened.enter_context(eventsourced.eventsourced(server))
        eventsourced.record(
            package,
            EVENTS,
            _FillProgress("recording the same number of events with the library eventsourcing"),
        )
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
            ReadSide("typed", partial(typed, conn)),
            *map(ReadSide, COPIES, reads),
            ReadSide("projected", partial(projected, engine, tail, COMPARED), partial(emptied, engine)),
            ReadSide(
                "projected_all", partial(projected, engine, tail, PROJECTIONS), partial(emptied, engine)
            ),
            ReadSide("eventsourcing", partial(read_with_eventsourcing, package)),
        )
        for side in sides:  # warm the caches of server and operating system before the first round
            await side.prepare()
            await side.read()

        async def take(number: int, progress: Progress) -> Round:
            rotated = sides[number % len(sides) :] + sides[: number % len(sides)]
            return await _round(rotated, progress)

        yield take


async def _round(sides: Sequence[ReadSide], progress: Progress) -> Round:
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
        ratio("replay.projected_all.ratio_copy", rounds, Pair("projected_all", copy)),
        ratio("replay.typed.ratio_eventsourcing", rounds, Pair("typed", "eventsourcing")),
        pooled_median("replay.typed.rate", rounds, "typed", "events/s"),
        pooled_median("replay.projected.rate", rounds, "projected", "events/s"),
        pooled_median("replay.projected_all.rate", rounds, "projected_all", "events/s"),
        pooled_median("replay.copy.rate", rounds, copy, "events/s"),
        pooled_median("replay.eventsourcing.rate", rounds, "eventsourcing", "events/s"),
    )


class _FillProgress:
    """Prints which share of the events is recorded, with a line for each quarter."""

    def __init__(self, what: str) -> None:
        self._what, self._next = what, 0.0

    def __call__(self, done: float) -> None:
        if done >= self._next:
            self._next = done + _PROGRESS_STEP
            sys.stderr.write(f"replay: {self._what}, {done:.0%} of {EVENTS:,} events\n")


BENCH: Final = Bench(
    name="replay",
    explanation="the ledger read back into typed events, compared with COPY of its raw rows",
    shape=f"replay {EVENTS} events",
    rounds=ROUNDS,
    running=_running,
    results=_results,
)
