"""The writing side of the watch bench: commands of two events at an even rate, into the ledger or the raw table.

Each command is due at a moment of its own and waits for nobody, as callers do. What is noted of each event is its
position and the moment at which its commit had returned, on the clock that the machine's processes share. Then
whoever follows the ledger is woken, as the API does after a commit.
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

from bench import raw
from bench.workload import one_event
from control_plane.handle import Wake
from control_plane.wake import RedisWake
from events.append import Command, append

Commit = tuple[int, int]
"""Position, and the moment in nanoseconds."""


class Writing(msgspec.Struct):
    """Where to write; the first line that the process gets."""

    dsn: str
    redis_url: str
    connections: int


class Turn(msgspec.Struct):
    """What to write: so many events, so many a second."""

    into_ledger: bool
    events: int
    rate: int


Write = Callable[[psycopg.AsyncConnection, Command], Awaitable[Sequence[int]]]
"""Carries a command out; returns the positions of its events."""
FACTS: Final = 2
_SETTLE_SECONDS: Final = 0.05


class _Hand:
    """One connection's writes to one place: the events of its own streams, in their order."""

    def __init__(self, number: int, conn: psycopg.AsyncConnection, write: Write) -> None:
        self._number, self._conn, self._write = number, conn, write
        self._begun = count()

    async def next(self) -> list[Commit]:
        positions = await self._write(self._conn, _command(self._number, next(self._begun)))
        at = time.monotonic_ns()
        return [(position, at) for position in positions]


def _command(connection: int, index: int) -> Command:
    """The next `FACTS` events of one stream, in one commit."""
    singles = [one_event(connection, index * FACTS + number) for number in range(FACTS)]
    [change] = singles[0].changes
    facts = [fact for single in singles for each in single.changes for fact in each.facts]
    return singles[0]._replace(changes=(change._replace(facts=facts),))


async def _run() -> None:
    writing = msgspec.json.decode(sys.stdin.readline(), type=Writing)
    async with AsyncExitStack() as opened:
        connections = [
            await opened.enter_async_context(
                await psycopg.AsyncConnection.connect(writing.dsn, autocommit=True)
            )
            for _ in range(writing.connections)
        ]
        redis = await opened.enter_async_context(Redis.from_url(writing.redis_url))
        hands = {
            into_ledger: [_Hand(number, conn, write) for number, conn in enumerate(connections)]
            for into_ledger, write in ((True, _into_ledger), (False, _into_raw(count(1))))
        }
        _say(None)
        while line := await asyncio.to_thread(sys.stdin.readline):
            turn = msgspec.json.decode(line, type=Turn)
            wake = RedisWake(redis) if turn.into_ledger else _nobody
            _say(await _turn(turn, hands[turn.into_ledger], wake))


async def _turn(turn: Turn, hands: list[_Hand], wake: Wake) -> list[Commit]:
    first = time.monotonic() + _SETTLE_SECONDS
    due = iter([first + number / turn.rate for number in range(0, turn.events, FACTS)])
    commits: list[Commit] = []

    async def write(hand: _Hand) -> None:
        for moment in due:
            if (pause := moment - time.monotonic()) > 0:
                await asyncio.sleep(pause)
            commits.extend(await hand.next())
            await wake()

    await asyncio.gather(*map(write, hands))
    return sorted(commits)


async def _into_ledger(conn: psycopg.AsyncConnection, command: Command) -> Sequence[int]:
    return [each.position for each in await append(conn, command.changes, command.cause)]


def _into_raw(positions: Iterator[int]) -> Write:
    async def write(conn: psycopg.AsyncConnection, command: Command) -> Sequence[int]:
        inserts = list(raw.event_inserts(command.changes, command.cause, positions))
        await raw.insert_all(conn, inserts)
        return [int(str(insert.row[0])) for insert in inserts]

    return write


async def _nobody() -> None:
    """The raw tailer looks without being told."""


def _say(answer: object) -> None:
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_run())
