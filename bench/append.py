"""`append`: the road into the ledger against the same rows written raw (design section 7).

Eight connections of one event loop, as in the API, all of them the application's role; fsync on. In each round every
side has one turn with the same number of appends, in an order that turns with the rounds. `single` is one event,
`full` a command on two new streams that takes two claims under an idempotency key. Ours is one call of `append` and
a transaction of its own. What is appended is made before the clock starts, on both sides; encoding it is our call's.
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
from bench.servers import bench_folder, migrated_postgres
from bench.workload import Command, full_command, one_event
from events.append import append

CONNECTIONS: Final = 8
ROUNDS: Final = 15
SINGLES: Final = 250
FULLS: Final = 100
WARM_UP: Final = 30

Connections = Sequence[psycopg.AsyncConnection]
Act = Callable[[psycopg.AsyncConnection], Awaitable[object]]
"""One append, given its connection."""


class Side(NamedTuple):
    """A series of the bench: the n-th act of a connection, and how many of them each has in a turn."""

    series: str
    act: Callable[[int, int], Act]
    turn: int


def _sides() -> tuple[Side, ...]:
    positions = count(1)

    def raw_one(connection: int, index: int) -> Act:
        return _inserting(raw.event_inserts(*one_event(connection, index)[:2], positions))

    def raw_full(connection: int, index: int) -> Act:
        inserts = raw.command_inserts(full_command(connection, index), positions)
        return lambda conn: raw.insert_all(conn, inserts)

    return (
        Side("single.ledger", lambda *which: _appending(one_event(*which)), SINGLES),
        Side("single.raw", raw_one, SINGLES),
        Side("full.ledger", lambda *which: _appending(full_command(*which)), FULLS),
        Side("full.raw", raw_full, FULLS),
    )


def _appending(command: Command) -> Act:
    return lambda conn: append(conn, command.changes, command.cause, key=command.key, answer=command.answer)


def _inserting(inserts: Iterable[raw.Insert]) -> Act:
    [insert] = inserts
    return lambda conn: raw.insert_one(conn, insert)


class _Turns:
    """Carries out turns; every act of a side is new to its tables."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._begun: dict[str, int] = {}

    async def rate(self, side: Side, size: int) -> float:
        """Appends a second, all connections together."""
        first = self._begun.get(side.series, 0)
        self._begun[side.series] = first + size
        acts: list[list[Act]] = [[] for _ in self._connections]
        for index in range(
            first, first + size
        ):  # across connections, so that raw positions ascend as ours do
            for number, own in enumerate(acts):
                own.append(side.act(number, index))
        gc.collect()
        began = time.perf_counter()
        await asyncio.gather(*map(_one_by_one, self._connections, acts))
        return size * len(acts) / (time.perf_counter() - began)


async def _one_by_one(conn: psycopg.AsyncConnection, acts: Sequence[Act]) -> None:
    for act in acts:
        await act(conn)


@asynccontextmanager
async def _running() -> AsyncIterator[TakeRound]:
    with bench_folder() as folder, migrated_postgres(folder) as server:
        raw.make_tables(server.admin_dsn)
        async with AsyncExitStack() as opened:
            connections = [
                await opened.enter_async_context(
                    await psycopg.AsyncConnection.connect(server.app_dsn, autocommit=True)
                )
                for _ in range(CONNECTIONS)
            ]
            turns, sides = _Turns(connections), _sides()
            for side in sides:
                await turns.rate(side, WARM_UP)

            async def take(number: int, progress: Progress) -> Round:
                return await _round(
                    turns, sides[number % len(sides) :] + sides[: number % len(sides)], progress
                )

            yield take


async def _round(turns: _Turns, sides: Sequence[Side], progress: Progress) -> Round:
    rates: dict[str, list[float]] = {}
    for done, side in enumerate(sides):
        progress(done / len(sides))
        rates[side.series] = [await turns.rate(side, side.turn)]
    progress(1.0)
    return rates


def _results(rounds: Sequence[Round]) -> tuple[Measurement, ...]:
    return (
        ratio("append.single.ratio_raw", rounds, Pair("single.ledger", "single.raw")),
        ratio("append.full.ratio_raw", rounds, Pair("full.ledger", "full.raw")),
        middle("append.single.rate", rounds, "single.ledger", "appends/s"),
        middle("append.full.rate", rounds, "full.ledger", "appends/s"),
    )


BENCH: Final = Bench(
    name="append",
    explanation="appends to the ledger against the same rows written raw",
    shape=f"append {CONNECTIONS} connections, {SINGLES} singles, {FULLS} full",
    rounds=ROUNDS,
    running=_running,
    results=_results,
)
