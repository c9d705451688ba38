"""Advancing the tables of projections along the ledger, applying each event exactly once.

A batch's rows and the checkpoints commit together. A batch that fails is processed again in smaller parts, until the
one event that cannot be processed is found. All events before it are applied. The event itself is not applied, and its
position and the error are stored with the checkpoint until an operator requests a retry or a skip. The same code fills
live tables and the tables of a rebuild; a long range of final events is streamed.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from contextlib import aclosing, suppress
from typing import Final, Self

import psycopg
import sqlalchemy as sa
import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from control_plane.database import reading
from control_plane.projector.gathering import Gathering, Skips, Stopped, irrelevant_types, skips_of
from events.envelope import Recorded
from events.facts import Fact
from events.ledger.connection import ledger_connection
from events.ledger.replay import replay
from events.ledger.tail import Tail
from events.values import Position
from read_models import checkpoints
from read_models.generations import IDLE, use_table_set
from read_models.projections import Projection
from read_models.rows import Span
from tasks.failpoints import failpoint

log = structlog.get_logger()
SMALLER: Final = 8
RANGE_POSITIONS: Final = 20_000
"""Number of positions that one statement reads. While a statement runs, the server keeps every version of each row
that is updated meanwhile: when one statement read a million events, a table of two thousand rows grew to a hundred
thousand row versions, and each batch took longer than the batch before.
"""


class Advance:
    """Advances several projections along the ledger together, in one table set and from one position.

    `batch` is the number of events per commit.
    """

    def __init__(
        self, engine: AsyncEngine, tail: Tail, projections: Sequence[Projection], generation: str, batch: int
    ) -> None:
        self._engine, self._tail = engine, tail
        self._projections, self._generation = tuple(projections), generation
        self._whole = self._size = batch
        self._skips: Skips = {}
        self.position = Position(0)

    async def begin(self) -> bool:
        """Load the checkpoint to continue from, and the positions to skip. Return whether all projections are at that
        checkpoint.
        """
        async with self._engine.begin() as conn:
            self._skips = await skips_of(conn, self._projections)
            await use_table_set(conn, self._generation)
            positions = [await checkpoints.load(conn, each.name) for each in self._projections]
        self.position = min(positions)
        return len({*positions}) == 1

    async def stream(self) -> None:
        """Process all events that are final now. If an event cannot be processed, return without an error; the next
        calls of `step` find this event.
        """
        final = await self._tail.final()
        if final <= self.position:  # unknown, or older than the processed position, while an appender hangs
            return
        async with reading(self._engine) as conn:
            reader = await ledger_connection(conn)
            async with aclosing(in_ranges(reader, self._projections, Span(self.position, final))) as ranges:
                with suppress(Stopped):
                    await self._stream(ranges, final)

    async def _stream(self, ranges: AsyncIterator[list[Recorded[Fact]]], final: Position) -> None:
        gathering = self._gathering()
        # One part is written while the next is gathered, so that the server and this process work at the same time.
        # Reading rows that have already arrived never yields to the event loop, so `sleep(0)` lets the writing go on.
        async with _Background() as writing:
            async for events in ranges:
                gathering.add(events)
                await asyncio.sleep(0)
                if gathering.events >= self._whole:
                    await writing.then(self._commit(gathering, events[-1].position))
                    gathering = self._gathering()
            await writing.then(self._commit(gathering, final))

    async def step(self) -> bool:
        """Process the next batch of events; return whether there was one.

        Raises `Stopped`, `CheckpointSuperseded` and outage errors.
        """
        batch = await self._tail.batch(self.position, self._size)
        if batch.final == self.position:
            return False
        gathering = self._gathering()
        try:
            gathering.add(batch.events)
            await self._commit(gathering, batch.final)
        except Stopped as stopped:
            if len(batch.events) == 1:
                stopped.at = batch.events[0].position
                await self._stop(stopped)
                raise
            self._size = max(1, len(batch.events) // SMALLER)
        else:
            self._size = min(self._whole, self._size * SMALLER)
        return True

    @property
    def searching(self) -> bool:
        """Whether a batch of events failed, and `step` processes smaller parts of it to find the event that cannot be
        processed.
        """
        return self._size < self._whole

    def _gathering(self) -> Gathering:
        return Gathering(self._projections, self._skips)

    async def _commit(self, gathering: Gathering, now: Position) -> None:
        async with self._engine.begin() as conn:
            await use_table_set(conn, self._generation)
            if self._generation == IDLE:
                # A rebuild begins again after a crash, and its swap makes everything before it durable.
                await conn.execute(sa.text("set local synchronous_commit = off"))
            # Advance the checkpoints first, because this locks their rows: a second runner at the same position waits
            # here and fails with `CheckpointSuperseded`. Otherwise it would conflict with the rows that were written
            # meanwhile.
            names = [each.name for each in self._projections]
            await checkpoints.advance(conn, *names, was=self.position, now=now)
            await gathering.write(conn, Span(self.position, now))
            failpoint("project.before_commit")
        failpoint("project.committed")
        self.position = now

    async def _stop(self, stopped: Stopped) -> None:
        log.error(
            "projection_stopped_at_event",
            projection=stopped.projection,
            position=stopped.at,
            error=stopped.error,
            table_set=self._generation,
        )
        async with self._engine.begin() as conn:
            await use_table_set(conn, self._generation)
            await checkpoints.stop(
                conn, stopped.projection, was=self.position, at=stopped.at, error=stopped.error
            )


async def in_ranges(
    reader: psycopg.AsyncConnection, projections: Sequence[Projection], span: Span
) -> AsyncGenerator[list[Recorded[Fact]], None]:
    """Yield the events that concern these projections, in ledger order, from a range of positions that are final. Each
    statement reads at most `RANGE_POSITIONS` positions.
    """
    without = irrelevant_types(projections)
    after, upto = span
    while after < upto:
        end = Position(min(after + RANGE_POSITIONS, upto))
        async with aclosing(replay(reader, after, end, without=without)) as range_events:
            async for events in range_events:
                yield events
        after = end


class _Background:
    """Runs coroutines in the background, one after the other and at most one at a time."""

    def __init__(self) -> None:
        self._running: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def then(self, work: Coroutine[None, None, None]) -> None:
        """Wait for the running coroutine, then start the coroutine `work`. Raises the exception of the coroutine that
        was running.
        """
        before, self._running = self._running, None
        if before is not None:
            try:
                await before
            except BaseException:
                work.close()
                raise
        self._running = asyncio.ensure_future(work)

    async def __aexit__(self, *_: object) -> None:
        if self._running is not None:
            await self._running
