"""Concurrent readers of the ledger: correct ones, which must see every event, and three faulty ones, which must not.

All of them read until `Progress.end`, which is set once the last writer has ended. A correct reader stops at the first
missing position that a transaction which holds the ledger's fence (an advisory lock) may still write
(`events.ledger.tail`). Each faulty reader breaks this rule in one place. The events that it loses show that the load of
the writers can reveal such a mistake.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, LiteralString, NamedTuple

import psycopg

from events.ledger.store import read_range
from events.ledger.tail import Tail
from events.values import Position, StreamId
from tests.servers.postgres import Database

POLL_SECONDS: Final = 0.003


class Seen(NamedTuple):
    """Position, stream and version of an event that a reader received."""

    position: Position
    stream: StreamId
    version: int


@dataclass
class Progress:
    """Events that the first reader has received, and the last position of the ledger, which is None
    while writers run.
    """

    seen: list[Seen] = field(default_factory=list)
    end: int | None = None

    def reached(self, position: int) -> bool:
        return self.end is not None and position >= self.end


Step = Callable[[Position], Awaitable[tuple[list[Seen], Position]]]
"""One read after a position: returns the events found there and the position to continue from."""


async def follow(step: Step, progress: Progress, seen: list[Seen]) -> list[Seen]:
    """Read the ledger step by step to its end; retry while the server is unreachable. Return the events
    that were read.
    """
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
    """Return a reading step that reads one batch, as the product's followers of the ledger do."""

    async def step(position: Position) -> tuple[list[Seen], Position]:
        batch = await tail.batch(position, limit)
        return [Seen(event.position, event.stream, event.version) for event in batch.events], batch.final

    return step


def by_random_batches(tail: Tail, rng: random.Random) -> Step:
    """Return a reading step that reads a batch of random size, and reconnects in one of ten calls."""

    async def step(position: Position) -> tuple[list[Seen], Position]:
        if rng.random() < 0.1:
            await tail.close()
        return await by_batches(tail, rng.choice([1, 7, 60, 500]))(position)

    return step


def by_final(tail: Tail, dsn: str) -> Step:
    """Return a reading step that reads up to the final position, below which no event can still be committed."""

    async def step(position: Position) -> tuple[list[Seen], Position]:
        final = await tail.final()
        if final <= position:
            return [], position
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
            events = await read_range(conn, position, final, limit=final)
        return [Seen(event.position, event.stream, event.version) for event in events], final

    return step


async def faulty_readers(database: Database, progress: Progress) -> dict[str, set[int]]:
    """Run the faulty readers, and return the positions that each of them read."""
    readers = {"naive": _naive, "one statement": _one_statement, "one snapshot": _one_snapshot}
    seen = await asyncio.gather(*(_faulty(database, read, progress) for read in readers.values()))
    return dict(zip(readers, seen, strict=True))


class _Snapshot(NamedTuple):
    """Result of one read by a faulty reader. `last` is the last drawn position, and `holders` are the transactions that
    hold the ledger's fence (an advisory lock), as this reader determines them.
    """

    events: list[int]
    dead: list[int]
    last: int
    holders: list[str]


_Read = Callable[[psycopg.AsyncConnection, int], Awaitable[_Snapshot]]


async def _faulty(database: Database, read: _Read, progress: Progress) -> set[int]:
    seen: set[int] = set()
    first_holders: dict[int, list[str]] = {}
    position = 0
    async with await psycopg.AsyncConnection.connect(database.app_dsn, autocommit=True) as conn:
        await conn.execute(
            "set idle_in_transaction_session_timeout = 0"
        )  # The reader may be arbitrarily slow on a loaded machine.
        while not progress.reached(position):
            snapshot = await read(conn, position)
            end = _up_to_the_first_gap(snapshot, position, first_holders)
            seen.update(number for number in snapshot.events if number <= end)
            position = max(position, end)
            if progress.end is not None and not snapshot.events and not snapshot.holders:
                break  # The last positions are dead, which the naive reader never detects.
            await asyncio.sleep(POLL_SECONDS)
    return seen


def _up_to_the_first_gap(snapshot: _Snapshot, after: int, first_holders: dict[int, list[str]]) -> int:
    accounted = {*snapshot.events, *snapshot.dead}
    for number in range(after + 1, snapshot.last + 1):
        if number not in accounted:
            first = first_holders.setdefault(number, snapshot.holders)
            if not set(first).isdisjoint(snapshot.holders):
                return number - 1
    return snapshot.last


async def _naive(conn: psycopg.AsyncConnection, after: int) -> _Snapshot:
    """Read every visible event and wrongly assume that no event with a lower position is committed later."""
    (events,) = await _row(
        conn, "select array(select position from ledger.event where position > %(after)s)", after=after
    )
    return _Snapshot(events, [], max(events, default=after), [])


async def _one_statement(conn: psycopg.AsyncConnection, after: int) -> _Snapshot:
    """Read the state of the fence and the events in one statement, with a snapshot older than that state.

    The statement takes its snapshot, sleeps some milliseconds, and then reads the state of the fence. Events are
    therefore lost with certainty, even in a short run.
    """
    query = """
      select array(select position from ledger.event where position > %(after)s and position <= fence.last),
             array(select position from ledger.dead_position where position > %(after)s),
             fence.last, fence.holders
        from (select pg_sleep(0.004)::text as nothing) slept
       cross join lateral (select * from ledger.fence() where nothing = '') fence
    """
    return _Snapshot(*await _row(conn, query, after=after))


async def _one_snapshot(conn: psycopg.AsyncConnection, after: int) -> _Snapshot:
    """Read the state of the fence, then the events, in a REPEATABLE READ transaction with an older snapshot."""
    query = """
      select array(select position from ledger.event where position > %(after)s and position <= %(last)s),
             array(select position from ledger.dead_position where position > %(after)s)
    """
    async with conn.transaction():
        await conn.execute("set transaction isolation level repeatable read")
        await conn.execute("select max(epoch) from ledger.epoch")
        last, holders = await _row(conn, "select last, holders from ledger.fence()")
        events, dead = await _row(conn, query, after=after, last=last)
    return _Snapshot(events, dead, last, holders)


async def _row(conn: psycopg.AsyncConnection, query: LiteralString, **parameters: int) -> tuple[Any, ...]:
    row = await (await conn.execute(query, parameters or None)).fetchone()
    assert row is not None
    return row
