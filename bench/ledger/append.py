"""`append`: appends to the ledger, compared with raw inserts of the same rows and with the package `eventsourcing`.

Eight connections of one event loop, as in the API, use the application's role; fsync is on. In each round every side
has one turn; the order rotates from round to round. `single` appends one event, `full` a command with two new streams,
two claims and an idempotency key; each is one call of `append` in its own transaction. All sides build their commands
before the clock starts; the ledger encodes its commands within the measured time.
"""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from typing import Final, NamedTuple

import psycopg

from bench.harness.measure import Bench, Measurement, Pair, Progress, Round, TakeRound, pooled_median, ratio
from bench.harness.servers import bench_folder, migrated_postgres
from bench.ledger import raw
from bench.ledger.ordered_recorder import OrderedRecorder, ordered_recorder, stored_events
from bench.ledger.workload import full_command, one_event
from events.ledger.append import LedgerCommand, append

CONNECTIONS: Final = 8
ROUNDS: Final = 15
SINGLES: Final = 250
FULLS: Final = 100
WARM_UP: Final = 30

Connections = Sequence[psycopg.AsyncConnection]
Act = Callable[[psycopg.AsyncConnection], Awaitable[object]]
"""One append on the given connection."""
Turn = Callable[[], Awaitable[int]]
"""Performs prepared appends and returns how many events or commands were stored."""


class AppendSide(NamedTuple):
    """One compared side of the append benchmark.

    `prepare` builds a turn from a range of numbers: each connection makes one append for each number. `size` is the
    length of that range.
    """

    series: str
    prepare: Callable[[range], Turn]
    size: int


def _sides(connections: Connections, recorder: OrderedRecorder) -> tuple[AppendSide, ...]:
    positions = count(1)

    def one_by_one(act: Callable[[int, int], Act]) -> Callable[[range], Turn]:
        return lambda which: _turn(connections, which, act)

    def raw_one(connection: int, index: int) -> Act:
        return _inserting(raw.event_inserts(*one_event(connection, index)[:2], positions))

    def raw_full(connection: int, index: int) -> Act:
        inserts = raw.command_inserts(full_command(connection, index), positions)
        return lambda conn: raw.insert_all(conn, inserts)

    return (
        AppendSide("single.ledger", one_by_one(lambda *which: _appending(one_event(*which))), SINGLES),
        AppendSide("single.raw", one_by_one(raw_one), SINGLES),
        AppendSide("single.eventsourcing", lambda which: _recorder_turn(recorder, which), SINGLES),
        AppendSide("full.ledger", one_by_one(lambda *which: _appending(full_command(*which))), FULLS),
        AppendSide("full.raw", one_by_one(raw_full), FULLS),
    )


def _appending(command: LedgerCommand) -> Act:
    return lambda conn: append(conn, command.changes, command.cause, key=command.key, answer=command.answer)


def _inserting(inserts: Iterable[raw.Insert]) -> Act:
    [insert] = inserts
    return lambda conn: raw.insert_one(conn, insert)


def _turn(connections: Connections, which: range, act: Callable[[int, int], Act]) -> Turn:
    acts: list[list[Act]] = [[] for _ in connections]
    # Index by index over all connections, so that the positions of raw rows ascend like the ledger's.
    for index in which:
        for number, acts_of_connection in enumerate(acts):
            acts_of_connection.append(act(number, index))

    async def turn() -> int:
        await asyncio.gather(*map(_one_by_one, connections, acts))
        return len(which) * len(connections)

    return turn


async def _one_by_one(conn: psycopg.AsyncConnection, acts: Sequence[Act]) -> None:
    for act in acts:
        await act(conn)


def _recorder_turn(recorder: OrderedRecorder, which: range) -> Turn:
    rows = [
        stored_events([one_event(connection, index) for index in which]) for connection in range(CONNECTIONS)
    ]

    async def turn() -> int:
        await recorder.insert(rows)
        return sum(map(len, rows))

    return turn


class _Turns:
    """Measures turns of the compared sides. Each turn of a side gets new append numbers, so it writes new rows."""

    def __init__(self) -> None:
        self._begun: dict[str, int] = {}

    async def rate(self, side: AppendSide, size: int) -> float:
        """Return the events or commands stored per second on all connections together."""
        first = self._begun.get(side.series, 0)
        self._begun[side.series] = first + size
        turn = side.prepare(range(first, first + size))
        gc.collect()
        began = time.perf_counter()
        stored = await turn()
        return stored / (time.perf_counter() - began)


@asynccontextmanager
async def _running() -> AsyncIterator[TakeRound]:
    with (
        bench_folder() as folder,
        migrated_postgres(folder) as server,
        ordered_recorder(server, CONNECTIONS) as recorder,
    ):
        raw.make_tables(server.admin_dsn)
        async with AsyncExitStack() as opened:
            connections = [
                await opened.enter_async_context(
                    await psycopg.AsyncConnection.connect(server.app_dsn, autocommit=True)
                )
                for _ in range(CONNECTIONS)
            ]
            turns, sides = _Turns(), _sides(connections, recorder)
            for side in sides:
                await turns.rate(side, min(side.size, WARM_UP))

            async def take(number: int, progress: Progress) -> Round:
                return await _round(
                    turns, sides[number % len(sides) :] + sides[: number % len(sides)], progress
                )

            yield take


async def _round(turns: _Turns, sides: Sequence[AppendSide], progress: Progress) -> Round:
    rates: dict[str, list[float]] = {}
    for done, side in enumerate(sides):
        progress(done / len(sides))
        rates[side.series] = [await turns.rate(side, side.size)]
    progress(1.0)
    return rates


def _results(rounds: Sequence[Round]) -> tuple[Measurement, ...]:
    return (
        ratio("append.single.ratio_raw", rounds, Pair("single.ledger", "single.raw")),
        ratio("append.full.ratio_raw", rounds, Pair("full.ledger", "full.raw")),
        ratio("append.single.ratio_eventsourcing", rounds, Pair("single.ledger", "single.eventsourcing")),
        pooled_median("append.single.rate", rounds, "single.ledger", "appends/s"),
        pooled_median("append.full.rate", rounds, "full.ledger", "appends/s"),
    )


BENCH: Final = Bench(
    name="append",
    explanation="appends to the ledger, compared with raw inserts of the same rows and with the library eventsourcing",
    shape=f"append, {CONNECTIONS} connections, {SINGLES} appends of one event, {FULLS} full appends",
    rounds=ROUNDS,
    running=_running,
    results=_results,
)
