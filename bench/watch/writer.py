"""The writing side of the watch benchmark: commands of two events at a constant rate, to the ledger or the raw table.

Each command has its own start time and does not wait for others, like independent callers. For each event the process
records the position and the time at which its commit returned, on the clock that all processes of the machine share.
Then it wakes the followers of the ledger, as the API does after a commit.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from itertools import count
from typing import Final

import msgspec
import psycopg
from redis.asyncio import Redis

from bench.ledger import raw
from bench.ledger.workload import one_event
from control_plane.following.wake import RedisWake
from control_plane.handle import Wake
from events.ledger.append import LedgerCommand, append

Commit = tuple[int, int]
"""Position of an event, and the time of its commit in nanoseconds."""


class WriterSettings(msgspec.Struct):
    """Settings of the writing process, the first line of its standard input: Postgres, Redis, number of connections."""

    dsn: str
    redis_url: str
    connections: int


class Turn(msgspec.Struct):
    """One turn: number of events, rate in events per second, and whether they go to the ledger or to the raw table."""

    into_ledger: bool
    events: int
    rate: int


Write = Callable[[psycopg.AsyncConnection, LedgerCommand], Awaitable[Sequence[int]]]
"""Executes a command and returns the positions of its events."""
FACTS: Final = 2
_SETTLE_SECONDS: Final = 0.05


class _Writer:
    """Writes events over one connection, to the ledger or to the raw table, in order and to its own streams."""

    def __init__(self, number: int, conn: psycopg.AsyncConnection, write: Write) -> None:
        self._number, self._conn, self._write = number, conn, write
        self._begun = count()

    async def next(self) -> list[Commit]:
        positions = await self._write(self._conn, _command(self._number, next(self._begun)))
        at = time.monotonic_ns()
        return [(position, at) for position in positions]


def _command(connection: int, index: int) -> LedgerCommand:
    """Return a command with the next `FACTS` events of one stream."""
    singles = [one_event(connection, index * FACTS + number) for number in range(FACTS)]
    [change] = singles[0].changes
    facts = [fact for single in singles for each in single.changes for fact in each.facts]
    return singles[0]._replace(changes=(change._replace(facts=facts),))


async def _run() -> None:
    settings = msgspec.json.decode(sys.stdin.readline(), type=WriterSettings)
    async with AsyncExitStack() as opened:
        connections = [
            await opened.enter_async_context(
                await psycopg.AsyncConnection.connect(settings.dsn, autocommit=True)
            )
            for _ in range(settings.connections)
        ]
        redis = await opened.enter_async_context(Redis.from_url(settings.redis_url))
        writers = {
            into_ledger: [_Writer(number, conn, write) for number, conn in enumerate(connections)]
            for into_ledger, write in ((True, _into_ledger), (False, _into_raw(count(1))))
        }
        _write_answer(None)
        while line := await asyncio.to_thread(sys.stdin.readline):
            turn = msgspec.json.decode(line, type=Turn)
            wake = RedisWake(redis) if turn.into_ledger else _wake_nothing
            _write_answer(await _turn(turn, writers[turn.into_ledger], wake))


async def _turn(turn: Turn, writers: list[_Writer], wake: Wake) -> list[Commit]:
    first = time.monotonic() + _SETTLE_SECONDS
    due = iter([first + number / turn.rate for number in range(0, turn.events, FACTS)])
    commits: list[Commit] = []

    async def write(writer: _Writer) -> None:
        for moment in due:
            if (pause := moment - time.monotonic()) > 0:
                await asyncio.sleep(pause)
            commits.extend(await writer.next())
            await wake()

    await asyncio.gather(*map(write, writers))
    return sorted(commits)


async def _into_ledger(conn: psycopg.AsyncConnection, command: LedgerCommand) -> Sequence[int]:
    return [each.position for each in await append(conn, command.changes, command.cause)]


def _into_raw(positions: Iterator[int]) -> Write:
    async def write(conn: psycopg.AsyncConnection, command: LedgerCommand) -> Sequence[int]:
        inserts = list(raw.event_inserts(command.changes, command.cause, positions))
        await raw.insert_all(conn, inserts)
        return [int(str(insert.row[0])) for insert in inserts]

    return write


async def _wake_nothing() -> None:
    """Do nothing after a commit to the raw table: the baseline's reader polls and needs no wake-up."""


def _write_answer(answer: object) -> None:
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_run())
