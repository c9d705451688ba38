"""Following the ledger: read final events, evaluate them, and commit the result together with the checkpoint.

While more events are available, the next batch is read and evaluated while the batch before it is written. A result may
then be older than what other processes wrote in the meantime, as with any slow follower: the facts in between come in a
later batch. The first batch of a backlog is short, so that consumers of the result can start at once, and each batch
after it is longer.

All followers use this one loop. It waits for a wake-up from the process that appended and polls in addition, often
after traffic and rarely when idle, because a wake-up can be lost and the ledger cannot. A follower that lost its
database, or found that another process advanced its checkpoint, starts again from the stored checkpoint. An event that
it cannot read stops it visibly at that position: a newer release wrote the event and will read it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from control_plane.following.wake import Waiter
from control_plane.outage import DATABASE_UNAVAILABLE, rest
from events.envelope import Recorded
from events.facts import Fact
from events.ledger.errors import UnreadableEvent
from events.ledger.store import refuse_unreadable
from events.ledger.tail import Tail
from events.values import Position
from read_models import checkpoints
from tasks.failpoints import failpoint

log = structlog.get_logger()
FIRST: Final = 250
"""Number of facts in the first batch of a backlog; each further batch has `GROWTH` times as many, up to `BATCH`."""
GROWTH: Final = 4
BATCH: Final = 4000
RECONNECT_SECONDS: Final = 0.5
UNREADABLE_SECONDS: Final = 5.0
Found = TypeVar("Found")


class Committed(Protocol):
    """Callback after each commit of a follower; `more` is whether the ledger seems to have more events to read."""

    async def __call__(self, *, more: bool) -> None: ...


@dataclass(frozen=True, slots=True)
class Follower(Generic[Found]):
    """A consumer of the ledger with a checkpoint called `name`.

    `look` evaluates a batch that was read at the given database time and changes nothing; it may run while the previous
    batch is written. `write` writes its result in the transaction that also advances the checkpoint. `committed` is
    called after each commit, and again if the next read finds no more events although some were expected.
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
    """Run a follower of the ledger until cancelled."""
    while True:
        try:
            await _from_checkpoint(engine, tail, waiter, follower)
        except (checkpoints.CheckpointSuperseded, *DATABASE_UNAVAILABLE) as error:
            log.warning("ledger_follower_restarted_after_error", follower=follower.name, error=str(error))
            await rest(RECONNECT_SECONDS)
        except UnreadableEvent as error:
            log.error("ledger_follower_stopped_at_unreadable_event", follower=follower.name, error=str(error))
            await rest(UNREADABLE_SECONDS)


async def _from_checkpoint(
    engine: AsyncEngine, tail: Tail, waiter: Waiter, follower: Follower[Found]
) -> None:
    # Keep one connection: an order for an idle node would have to wait until the pool hands out another one.
    async with engine.connect() as conn:
        await _continue_from(conn, tail, waiter, follower)


async def _continue_from(
    conn: AsyncConnection, tail: Tail, waiter: Waiter, follower: Follower[Found]
) -> None:
    async with conn.begin():
        position = await checkpoints.load(conn, follower.name)
    limit = FIRST
    read = await _read(tail, follower, position, limit)
    reported_more = True  # a previous leader may have reported more events
    while True:
        more = read.facts == limit
        limit = min(GROWTH * limit, BATCH) if more else FIRST
        ahead = asyncio.ensure_future(_read(tail, follower, read.final, limit)) if more else None
        try:
            if read.final > position:
                await _write(conn, follower, position, read)
                position = read.final
                await follower.committed(more=more)
                reported_more = more
            elif reported_more and not more:
                await follower.committed(more=False)
                reported_more = False
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
        # Advance the checkpoint first, because this locks its row: a second runner at the same position waits here
        # and fails with `CheckpointSuperseded`. Otherwise it would conflict with the rows that were written in the
        # meantime.
        await checkpoints.advance(conn, follower.name, was=was, now=read.final)
        await follower.write(conn, read.found)
        failpoint("follow.before_commit")
    failpoint("follow.committed")
