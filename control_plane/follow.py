"""Following the log: read what is final, find what it leads to, and commit that with the checkpoint.

While there is more to read, the next batch is read and looked at while the one before is written. What was found may
then be older than what others wrote meanwhile, as it may whenever somebody is slow: the facts in between come in a
later batch. The first batch of a backlog is short, so that those who wait for what comes of it begin at once, and each
after it is longer.

One loop for every follower. It waits for a wake-up from whoever appended and polls behind that, quickly after
traffic and slowly when idle, because a wake-up can be lost and the ledger cannot. A follower that was
overtaken by another runner, or lost its database, starts again from the stored checkpoint. An event that it cannot
read stops it where it is, visibly, and nothing else: a newer release wrote it, and will read it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from control_plane.outage import DATABASE_AWAY
from control_plane.wake import Waiter
from events.envelope import Recorded
from events.errors import UnreadableEvent
from events.facts import Fact
from events.store import refuse_unreadable
from events.tail import Tail
from events.values import Position
from read_models import checkpoints
from tasks.failpoints import failpoint

log = structlog.get_logger()
FIRST: Final = 250
"""Facts in the first batch of a backlog; the next has `GROWTH` times as many, up to `BATCH`."""
GROWTH: Final = 4
BATCH: Final = 4000
RECONNECT_SECONDS: Final = 0.5
UNREADABLE_SECONDS: Final = 5.0
Found = TypeVar("Found")


class Committed(Protocol):
    async def __call__(self, *, more: bool) -> None: ...


@dataclass(frozen=True, slots=True)
class Follower(Generic[Found]):
    """`look` finds what a batch, read at a time of the database's, leads to and changes nothing; it may be asked while
    the batch before is written.

    `write` writes that inside the transaction that also moves the checkpoint of `name`. `committed` is told of each
    commit, for what must not happen before, and whether there seems to be more of the log to read; if there turns out
    to be none, it is told that too.
    """

    name: str
    look: Callable[[Sequence[Recorded[Fact]], datetime], Awaitable[Found]]
    write: Callable[[AsyncConnection, Found], Awaitable[None]]
    committed: Committed


class _Read(NamedTuple, Generic[Found]):
    final: Position
    found: Found
    facts: int


async def follow(engine: AsyncEngine, tail: Tail, waiter: Waiter, follower: Follower[Found]) -> None:
    """Run a follower until cancelled."""
    while True:
        try:
            await _from_checkpoint(engine, tail, waiter, follower)
        except (checkpoints.Overtaken, *DATABASE_AWAY) as error:
            log.warning("follower_restarts", follower=follower.name, error=str(error))
            await asyncio.sleep(RECONNECT_SECONDS)
        except UnreadableEvent as error:
            log.error("follower_cannot_read", follower=follower.name, error=str(error))
            await asyncio.sleep(UNREADABLE_SECONDS)


async def _from_checkpoint(
    engine: AsyncEngine, tail: Tail, waiter: Waiter, follower: Follower[Found]
) -> None:
    # Kept for as long as it holds: an order for an idle node would wait while another is got from the pool.
    async with engine.connect() as conn:
        await _go_on(conn, tail, waiter, follower)


async def _go_on(conn: AsyncConnection, tail: Tail, waiter: Waiter, follower: Follower[Found]) -> None:
    async with conn.begin():
        position = await checkpoints.load(conn, follower.name)
    limit = FIRST
    read = await _read(tail, follower, position, limit)
    said_more = True  # by who was here before, for all we know
    while True:
        more = read.facts == limit
        limit = min(GROWTH * limit, BATCH) if more else FIRST
        ahead = asyncio.ensure_future(_read(tail, follower, read.final, limit)) if more else None
        try:
            if read.final > position:
                await _write(conn, follower, position, read)
                position = read.final
                await follower.committed(more=more)
                said_more = more
            elif said_more and not more:
                await follower.committed(more=False)
                said_more = False
            if ahead is None:
                await waiter.wait(busy=bool(read.facts))
            read = await (ahead or _read(tail, follower, position, limit))
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)


async def _read(tail: Tail, follower: Follower[Found], after: Position, limit: int) -> _Read[Found]:
    batch = await tail.batch(after, limit)
    refuse_unreadable(batch.events)
    return _Read(Position(batch.final), await follower.look(batch.events, batch.at), len(batch.events))


async def _write(conn: AsyncConnection, follower: Follower[Found], was: Position, read: _Read[Found]) -> None:
    async with conn.begin():
        # First, because it locks the row: a twin at the same place waits here and learns that it was
        # overtaken, where it would otherwise run into the rows that were written meanwhile.
        await checkpoints.advance(conn, follower.name, was=was, now=read.final)
        await follower.write(conn, read.found)
        failpoint("follow.before_commit")
    failpoint("follow.committed")
