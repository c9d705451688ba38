"""Following the log: read what is final, deal with it, and commit the effects with the checkpoint.

One loop for every follower. It waits for a wake-up from whoever appended and polls behind that, quickly after
traffic and slowly when idle, because a wake-up can be lost and the ledger cannot. A follower that was
overtaken by another runner, or lost its database, starts again from the stored checkpoint. An event that it cannot
read stops it where it is, visibly, and nothing else: a newer release wrote it, and will read it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

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
BATCH: Final = 2000
RECONNECT_SECONDS: Final = 0.5
UNREADABLE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Follower:
    """`apply` deals with a batch inside the transaction that also moves the checkpoint of `name`.

    `committed` is told of each commit, for what must not happen before.
    """

    name: str
    apply: Callable[[AsyncConnection, Sequence[Recorded[Fact]]], Awaitable[None]]
    committed: Callable[[], Awaitable[None]] | None = None


async def follow(engine: AsyncEngine, tail: Tail, waiter: Waiter, follower: Follower) -> None:
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


async def _from_checkpoint(engine: AsyncEngine, tail: Tail, waiter: Waiter, follower: Follower) -> None:
    async with engine.begin() as conn:
        position = await checkpoints.load(conn, follower.name)
    while True:
        batch = await tail.batch(position, BATCH)
        if batch.final > position:
            refuse_unreadable(batch.events)
            async with engine.begin() as conn:
                # First, because it locks the row: a twin at the same place waits here and learns that it was
                # overtaken, where it would otherwise run into the rows that were written meanwhile.
                await checkpoints.advance(conn, follower.name, was=position, now=batch.final)
                await follower.apply(conn, batch.events)
                failpoint("follow.before_commit")
            failpoint("follow.committed")
            position = Position(batch.final)
            if follower.committed is not None:
                await follower.committed()
        await waiter.wait(busy=bool(batch.events))
