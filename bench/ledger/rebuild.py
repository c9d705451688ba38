"""`rebuild`: rebuild and swap in every read model, and measure the effect on appends (design section 3).

Two ledgers with a fleet's history, one ten times as long as the other, each on its own server. Each round rebuilds both
as the projector does, all read models in one pass with their swaps, and reads the longer ledger by COPY, as the replay
benchmark does. `swap_pause_ms` is measured on a third, short ledger: eight connections of another process append
continuously, with commands that write rows of nodes and slots. A pause is the duration of one append or the time
between two commits, whichever is longer. Pauses that overlap a swap count, and the result is the longest of all rounds.
For comparison, the longest pause in an equal time without a rebuild is reported too.
"""

import asyncio
import gc
import logging
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import psycopg
import structlog
from sqlalchemy.ext.asyncio import create_async_engine

from bench.harness.bench_process import BenchProcess, bench_process
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
from bench.ledger.histories import History
from bench.ledger.rebuild_writer import Append, WriterSettings
from bench.ledger.replay import COPIES, copied, copied_blocking
from control_plane.commands.projections import order_rebuild
from control_plane.handle import Command, Handle
from control_plane.origin import Origin
from control_plane.projector.rebuild import Rebuild
from deploy.embedded.postgres import PostgresServer
from events.ledger.append import CommandKey
from events.ledger.tail import Tail
from events.values import new_uuid
from read_models.projections import PROJECTIONS

LARGE: Final = 1_000_000
SMALL: Final = 100_000
SHORT: Final = 20_000
ROUNDS: Final = 5
CONNECTIONS: Final = 8
REBUILDS: Final = 4
"""Rebuilds of the short ledger per round; each swaps every read model."""
_PROGRESS_STEP: Final = 0.1
_MILLION: Final = 1_000_000


class TimeRange(NamedTuple):
    """A time range, in nanoseconds of the clock that all processes of the machine share."""

    began: int
    ended: int


@dataclass(frozen=True, slots=True)
class RecordingHandle(Handle):
    """Executes the commands of a rebuild (its swaps) and records the time range of each, even if the command fails."""

    windows: list[TimeRange] = field(default_factory=list)

    async def __call__(self, command: Command, key: CommandKey | None = None) -> str:
        began = time.monotonic_ns()
        try:
            return await Handle.__call__(self, command, key)
        finally:
            self.windows.append(TimeRange(began, time.monotonic_ns()))


@dataclass(frozen=True, slots=True)
class MeasuredLedger:
    """A Postgres server with a ledger that holds the history of a fleet."""

    server: PostgresServer
    handle: RecordingHandle
    tail: Tail
    events: int

    async def rebuild(self) -> float:
        """Rebuild and swap every read model. Return the seconds that it took."""
        for name in PROJECTIONS:
            await self.handle(order_rebuild(name, Origin("key:bench", "rebuild", new_uuid())))
        self.handle.windows.clear()
        gc.collect()
        began = time.perf_counter()
        await Rebuild(self.handle, self.tail)(list(PROJECTIONS.values()))
        return time.perf_counter() - began


@asynccontextmanager
async def _ledger(folder: Path, events: int) -> AsyncIterator[MeasuredLedger]:
    async with AsyncExitStack() as opened:
        server = opened.enter_context(migrated_postgres(folder))
        recorded = await History(server.app_dsn).grow(events, _FillProgress(events))
        engine = create_async_engine(sqlalchemy_url(server))
        opened.push_async_callback(engine.dispose)
        tail = Tail(server.app_dsn, "rebuild")
        opened.push_async_callback(tail.close)
        yield MeasuredLedger(server, RecordingHandle(engine, _wake_no_follower), tail, recorded)


@asynccontextmanager
async def _running() -> AsyncIterator[TakeRound]:
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.WARNING
        ),  # a line for each swap would hide the progress display
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )
    async with AsyncExitStack() as opened:
        folder = opened.enter_context(bench_folder())
        short, small, large = [
            await opened.enter_async_context(_ledger(folder / name, events))
            for name, events in (("short", SHORT), ("small", SMALL), ("large", LARGE))
        ]
        copies = await _copies(opened, large)
        appenders = await opened.enter_async_context(bench_process("bench.ledger.rebuild_writer"))
        await appenders.request(WriterSettings(sqlalchemy_url(short.server), CONNECTIONS), type(None))

        async def take(number: int, progress: Progress) -> Round:
            sides: list[Callable[[], Awaitable[dict[str, list[float]]]]] = [
                partial(_rebuilt, "small", small),
                partial(_rebuilt, "large", large),
                partial(_copied, copies, large.events),
                partial(_swapped, short, appenders),
            ]
            found: dict[str, list[float]] = {}
            for done in range(len(sides)):
                progress(done / len(sides))
                found |= await sides[(number + done) % len(sides)]()
            progress(1.0)
            return found

        yield take


async def _rebuilt(series: str, ledger: MeasuredLedger) -> dict[str, list[float]]:
    return {series: [ledger.events / await ledger.rebuild()]}


Copies = dict[str, Callable[[], Awaitable[int]]]


async def _copies(opened: AsyncExitStack, ledger: MeasuredLedger) -> Copies:
    dsn = ledger.server.app_dsn
    conn = await opened.enter_async_context(await psycopg.AsyncConnection.connect(dsn, autocommit=True))
    blocking = opened.enter_context(psycopg.connect(dsn, autocommit=True))
    reads = (
        partial(copied, conn, "text"),
        partial(copied, conn, "binary"),
        partial(copied_blocking, blocking, "text"),
        partial(copied_blocking, blocking, "binary"),
    )
    return dict(zip(COPIES, reads, strict=True))


async def _copied(copies: Copies, events: int) -> dict[str, list[float]]:
    rates = {}
    for series, copy in copies.items():
        gc.collect()
        began = time.perf_counter()
        await copy()
        rates[series] = [events / (time.perf_counter() - began)]
    return rates


async def _swapped(ledger: MeasuredLedger, appenders: BenchProcess) -> dict[str, list[float]]:
    """Rebuild the read models while appends run, then let appends run for an equal time without a rebuild.

    Return the pauses of the appends and their rates in both phases.
    """
    windows: list[TimeRange] = []
    began = time.monotonic()
    await appenders.request("begin", type(None))
    for _ in range(REBUILDS):
        await ledger.rebuild()
        windows += ledger.handle.windows
    under = await appenders.request("end", list[Append])
    took = time.monotonic() - began
    await appenders.request("begin", type(None))
    await asyncio.sleep(took)
    without = await appenders.request("end", list[Append])
    return {
        "pause": [max((_ms(each) for each in _pauses(under) if _within(each, windows)), default=0.0)],
        "pause.without": [max(map(_ms, _pauses(without)))],
        "pause.rebuilding": [max(map(_ms, _pauses(under)))],
        "swap": [_ms(each) for each in windows],
        "appends": [len(under) / took],
        "appends.without": [len(without) / took],
    }


def _pauses(appends: Sequence[Append]) -> Iterator[TimeRange]:
    """Yield the duration of each append, and the time between each commit and the next."""
    commits = sorted(ended for _, ended in appends)
    yield from (TimeRange(*each) for each in appends)
    yield from map(TimeRange, commits, commits[1:])


def _within(pause: TimeRange, windows: Sequence[TimeRange]) -> bool:
    return any(pause.began < each.ended and each.began < pause.ended for each in windows)


def _ms(window: TimeRange) -> float:
    return (window.ended - window.began) / _MILLION


def _results(rounds: Sequence[Round]) -> tuple[Measurement, ...]:
    copy = max(COPIES, key=lambda series: median(pooled(rounds, series)))
    return (
        ratio("rebuild.scaling", rounds, Pair("large", "small")),
        ratio("rebuild.ratio_copy", rounds, Pair("large", copy)),
        pooled_median("rebuild.rate", rounds, "large", "events/s"),
        pooled_median("rebuild.copy.rate", rounds, copy, "events/s"),
        _worst("rebuild.swap_pause_ms", rounds, "pause"),
        _worst("rebuild.pause_while_filling_ms", rounds, "pause.rebuilding"),
        _worst("rebuild.pause_without_ms", rounds, "pause.without"),
        pooled_median("rebuild.swap_ms", rounds, "swap", "ms"),
        pooled_median("rebuild.appends_under.rate", rounds, "appends", "appends/s"),
        pooled_median("rebuild.appends_without.rate", rounds, "appends.without", "appends/s"),
    )


def _worst(metric: str, rounds: Sequence[Round], series: str) -> Measurement:
    return Measurement(metric, round(max(pooled(rounds, series)), 1), "ms")


class _FillProgress:
    """Prints which share of the generated history is recorded."""

    def __init__(self, events: int) -> None:
        self._events, self._next = events, 0.0

    def __call__(self, done: float) -> None:
        if done >= self._next:
            self._next = done + _PROGRESS_STEP
            sys.stderr.write(f"rebuild: recording a fleet's history, {done:.0%} of {self._events:,} events\n")


async def _wake_no_follower() -> None:
    """Do nothing after a commit: no program follows these ledgers, so no program has to be woken."""


BENCH: Final = Bench(
    name="rebuild",
    explanation="time to rebuild the read models and swap them in, for a short and a long ledger, and under load",
    shape=f"rebuild {LARGE} and {SMALL} events, {REBUILDS} times while {CONNECTIONS} connections append",
    rounds=ROUNDS,
    running=_running,
    results=_results,
)
