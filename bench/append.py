"""`append`: the road into the ledger against the same rows written raw, and against `eventsourcing` (design section 7).

Eight connections of one event loop, as in the API, all of them the application's role; fsync on. In each round every
side has one turn, in an order that turns with the rounds. `single` is one event, `full` a command on two new streams
that takes two claims under an idempotency key, each one call of `append` and a transaction of its own. `batched` is
fifty commands of one event in one call of `append_many`; one in twenty is refused, and only the others are counted.
What is appended is made before the clock starts, on all sides; encoding it is our call's.
"""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from typing import Final, NamedTuple

import psycopg

from bench import raw
from bench.measure import Bench, Measurement, Pair, Progress, Round, TakeRound, middle, ratio
from bench.ordered_recorder import OrderedRecorder, ordered_recorder, stored_events
from bench.servers import bench_folder, migrated_postgres
from bench.workload import batch, full_command, one_event
from events.append import Command, append
from events.append_many import append_many
from events.errors import LedgerRefusal

CONNECTIONS: Final = 8
ROUNDS: Final = 15
SINGLES: Final = 250
FULLS: Final = 100
BATCHES: Final = 8
WARM_UP: Final = 30

Connections = Sequence[psycopg.AsyncConnection]
Act = Callable[[psycopg.AsyncConnection], Awaitable[object]]
"""One append, given its connection."""
Turn = Callable[[], Awaitable[int]]
"""Appends what was made for it, and returns how many were stored."""


class Side(NamedTuple):
    """A series of the bench: makes a turn of appends `first` to `first + size` of each connection."""

    series: str
    made: Callable[[range], Turn]
    size: int


def _sides(connections: Connections, recorder: OrderedRecorder) -> tuple[Side, ...]:
    positions = count(1)

    def one_by_one(act: Callable[[int, int], Act]) -> Callable[[range], Turn]:
        return lambda which: _turn(connections, which, act)

    def raw_one(connection: int, index: int) -> Act:
        return _inserting(raw.event_inserts(*one_event(connection, index)[:2], positions))

    def raw_full(connection: int, index: int) -> Act:
        inserts = raw.command_inserts(full_command(connection, index), positions)
        return lambda conn: raw.insert_all(conn, inserts)

    return (
        Side("single.ledger", one_by_one(lambda *which: _appending(one_event(*which))), SINGLES),
        Side("single.raw", one_by_one(raw_one), SINGLES),
        Side("single.eventsourcing", lambda which: _recorder_turn(recorder, which), SINGLES),
        Side("full.ledger", one_by_one(lambda *which: _appending(full_command(*which))), FULLS),
        Side("full.raw", one_by_one(raw_full), FULLS),
        Side("batched.ledger", lambda which: _batched_turn(connections, which), BATCHES),
    )


def _appending(command: Command) -> Act:
    return lambda conn: append(conn, command.changes, command.cause, key=command.key, answer=command.answer)


def _inserting(inserts: Iterable[raw.Insert]) -> Act:
    [insert] = inserts
    return lambda conn: raw.insert_one(conn, insert)


def _turn(connections: Connections, which: range, act: Callable[[int, int], Act]) -> Turn:
    acts: list[list[Act]] = [[] for _ in connections]
    for index in which:  # across connections, so that raw positions ascend as ours do
        for number, own in enumerate(acts):
            own.append(act(number, index))

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


def _batched_turn(connections: Connections, which: range) -> Turn:
    batches = [[batch(connection, index) for index in which] for connection in range(len(connections))]

    async def turn() -> int:
        return sum(await asyncio.gather(*map(_batch_by_batch, connections, batches)))

    return turn


async def _batch_by_batch(conn: psycopg.AsyncConnection, batches: Sequence[Sequence[Command]]) -> int:
    stored = 0
    for commands in batches:
        outcomes = await append_many(conn, commands)
        stored += sum(not isinstance(outcome, LedgerRefusal) for outcome in outcomes)
    return stored


class _Turns:
    """Carries out turns; every append of a side is new to its tables."""

    def __init__(self) -> None:
        self._begun: dict[str, int] = {}

    async def rate(self, side: Side, size: int) -> float:
        """Events or commands stored a second, all connections together."""
        first = self._begun.get(side.series, 0)
        self._begun[side.series] = first + size
        turn = side.made(range(first, first + size))
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


async def _round(turns: _Turns, sides: Sequence[Side], progress: Progress) -> Round:
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
        ratio("append.batched.ratio_raw", rounds, Pair("batched.ledger", "single.raw")),
        middle("append.single.rate", rounds, "single.ledger", "appends/s"),
        middle("append.full.rate", rounds, "full.ledger", "appends/s"),
        middle("append.batched.rate", rounds, "batched.ledger", "events/s"),
    )


BENCH: Final = Bench(
    name="append",
    explanation="appends to the ledger against the same rows written raw, and against eventsourcing",
    shape=f"append {CONNECTIONS} connections, {SINGLES} singles, {FULLS} full, {BATCHES} batches",
    rounds=ROUNDS,
    running=_running,
    results=_results,
)
