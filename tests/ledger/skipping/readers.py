"""Readers of the log while it is written: those that must see everything, and three that must not.

All go on until they have come to `Progress.end`, which is known once the last writer has ended. The faulty ones follow
the rule of `events.tail` (up to the first gap that one of its first holders may still fill) and each breaks it in one
place. They are what shows that the writers' load would have found a mistake.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, LiteralString, NamedTuple

import psycopg

from events.store import read_range
from events.tail import Tail
from events.values import Position, StreamId
from tests.servers.postgres import Database

POLL_SECONDS: Final = 0.003


class Seen(NamedTuple):
    position: Position
    stream: StreamId
    version: int


@dataclass
class Progress:
    """How much the first reader has seen so far, and where the log ends: unknown while it is written."""

    seen: list[Seen] = field(default_factory=list)
    end: int | None = None

    def reached(self, position: int) -> bool:
        return self.end is not None and position >= self.end


Step = Callable[[Position], Awaitable[tuple[list[Seen], Position]]]
"""One look behind a position: what is there, and where to go on."""


async def follow(step: Step, progress: Progress, seen: list[Seen]) -> list[Seen]:
    """Step by step to the end of the log; a server that is away is asked again."""
    position = Position(0)
    while not progress.reached(position):
        with suppress(psycopg.OperationalError):
            events, following = await step(position)
            seen += events
            if following > position:
                position = following
                continue
        await asyncio.sleep(POLL_SECONDS)
    return seen


def by_batches(tail: Tail, limit: int = 500) -> Step:
    """What followers do."""

    async def step(position: Position) -> tuple[list[Seen], Position]:
        batch = await tail.batch(position, limit)
        return [Seen(event.position, event.stream, event.version) for event in batch.events], batch.final

    return step


def restlessly(tail: Tail, dice: random.Random) -> Step:
    """The same in batches of any size, connecting anew every now and then."""

    async def step(position: Position) -> tuple[list[Seen], Position]:
        if dice.random() < 0.1:
            await tail.close()
        return await by_batches(tail, dice.choice([1, 7, 60, 500]))(position)

    return step


def by_final(tail: Tail, dsn: str) -> Step:
    """What a query does that needs to know how far the log is final."""

    async def step(position: Position) -> tuple[list[Seen], Position]:
        final = await tail.final()
        if final <= position:
            return [], position
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
            events = await read_range(conn, position, final, limit=final)
        return [Seen(event.position, event.stream, event.version) for event in events], final

    return step


async def faulty_readers(database: Database, progress: Progress) -> dict[str, set[int]]:
    """The positions that each of them saw."""
    readers = {"naive": _naive, "one statement": _one_statement, "one snapshot": _one_snapshot}
    seen = await asyncio.gather(*(_faulty(database, read, progress) for read in readers.values()))
    return dict(zip(readers, seen, strict=True))


class _Look(NamedTuple):
    """`last` and `holders` are what the reader took for the state of the fence."""

    events: list[int]
    dead: list[int]
    last: int
    holders: list[str]


_Read = Callable[[psycopg.AsyncConnection, int], Awaitable[_Look]]


async def _faulty(database: Database, read: _Read, progress: Progress) -> set[int]:
    seen: set[int] = set()
    first_holders: dict[int, list[str]] = {}
    position = 0
    async with await psycopg.AsyncConnection.connect(database.app_dsn, autocommit=True) as conn:
        await conn.execute("set idle_in_transaction_session_timeout = 0")  # as slow as the machine makes it
        while not progress.reached(position):
            look = await read(conn, position)
            end = _up_to_the_first_gap(look, position, first_holders)
            seen.update(number for number in look.events if number <= end)
            position = max(position, end)
            if progress.end is not None and not look.events and not look.holders:
                break  # The last positions are dead, which the naive one never learns.
            await asyncio.sleep(POLL_SECONDS)
    return seen


def _up_to_the_first_gap(look: _Look, after: int, first_holders: dict[int, list[str]]) -> int:
    known = {*look.events, *look.dead}
    for number in range(after + 1, look.last + 1):
        if number not in known:
            first = first_holders.setdefault(number, look.holders)
            if not set(first).isdisjoint(look.holders):
                return number - 1
    return look.last


async def _naive(conn: psycopg.AsyncConnection, after: int) -> _Look:
    """It takes what is there for all that will ever be there."""
    (events,) = await _row(
        conn, "select array(select position from ledger.event where position > %(after)s)", after=after
    )
    return _Look(events, [], max(events, default=after), [])


async def _one_statement(conn: psycopg.AsyncConnection, after: int) -> _Look:
    """Fence and events in one statement: its snapshot is older than what it says of the fence.

    By milliseconds, so that in a short run too the loss is certain and not only likely.
    """
    query = """
      select array(select position from ledger.event where position > %(after)s and position <= fence.last),
             array(select position from ledger.dead_position where position > %(after)s),
             fence.last, fence.holders
        from (select pg_sleep(0.004)::text as nothing) slept
       cross join lateral (select * from ledger.fence() where nothing = '') fence
    """
    return _Look(*await _row(conn, query, after=after))


async def _one_snapshot(conn: psycopg.AsyncConnection, after: int) -> _Look:
    """Fence, then events, but in a REPEATABLE READ transaction that looked at the ledger before."""
    query = """
      select array(select position from ledger.event where position > %(after)s and position <= %(last)s),
             array(select position from ledger.dead_position where position > %(after)s)
    """
    async with conn.transaction():
        await conn.execute("set transaction isolation level repeatable read")
        await conn.execute("select max(epoch) from ledger.epoch")
        last, holders = await _row(conn, "select last, holders from ledger.fence()")
        events, dead = await _row(conn, query, after=after, last=last)
    return _Look(events, dead, last, holders)


async def _row(conn: psycopg.AsyncConnection, query: LiteralString, **parameters: int) -> tuple[Any, ...]:
    row = await (await conn.execute(query, parameters or None)).fetchone()
    assert row is not None
    return row
