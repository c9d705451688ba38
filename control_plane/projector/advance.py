"""Bringing a set of tables up with the log, each event exactly once.

A batch's rows and the checkpoints commit together. A batch that fails is taken again in smaller parts, down to the one
event that cannot be dealt with: everything before it is in, nothing of it is, and the stop stands at its
checkpoint for people to see until one of them has it tried again, or passed over. The same steps fill live tables
and those of a rebuild; a long stretch of final events is streamed.
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
from control_plane.projector.gathering import Gathering, Skips, Stopped, of_no_concern, skips_of
from events.connection import ledger_connection
from events.envelope import Recorded
from events.facts import Fact
from events.replay import replay
from events.tail import Tail
from events.values import Position
from read_models import checkpoints
from read_models.generations import IDLE, turn_to
from read_models.projections import Projection
from read_models.rows import Span
from tasks.failpoints import failpoint

log = structlog.get_logger()
SMALLER: Final = 8
STRETCH: Final = 20_000
"""Positions that one statement reads. For as long as it runs, the server keeps every version of the rows that are
written beside it: read at once, a million events made a table of two thousand rows hold a hundred thousand, and each
batch took longer than the one before."""


class Advance:
    """Projections that go through the log together, in one set of tables, from one position on.

    `batch` is how many events share a commit.
    """

    def __init__(
        self, engine: AsyncEngine, tail: Tail, projections: Sequence[Projection], generation: str, batch: int
    ) -> None:
        self._engine, self._tail = engine, tail
        self._projections, self._generation = tuple(projections), generation
        self._whole = self._size = batch
        self._skips: Skips = {}
        self.position = Position(0)

    async def begin(self) -> None:
        """Find out where to go on, and what to pass over."""
        async with self._engine.begin() as conn:
            self._skips = await skips_of(conn, self._projections)
            await turn_to(conn, self._generation)
            self.position = min([await checkpoints.load(conn, each.name) for each in self._projections])

    async def stream(self) -> None:
        """Deal with what is final by now, up to an event that stops it: that is for `step` to find."""
        final = await self._tail.final()
        if final <= self.position:  # unknown, or older than what was dealt with, while an appender hangs
            return
        async with reading(self._engine) as conn:
            reader = await ledger_connection(conn)
            async with aclosing(
                in_stretches(reader, self._projections, Span(self.position, final))
            ) as stretches:
                with suppress(Stopped):
                    await self._stream(stretches, final)

    async def _stream(self, stretches: AsyncIterator[list[Recorded[Fact]]], final: Position) -> None:
        gathering = self._gathering()
        # One part is written while the next is gathered: the server and this process share the work. Rows that have
        # arrived already are no wait, so that the writing is let on by hand.
        async with _OneBehind() as writing:
            async for events in stretches:
                gathering.add(events)
                await asyncio.sleep(0)
                if gathering.events >= self._whole:
                    await writing.then(self._commit(gathering, events[-1].position))
                    gathering = self._gathering()
            await writing.then(self._commit(gathering, final))

    async def step(self) -> bool:
        """Deal with the next batch; whether there was one. Raises `Stopped`, `Overtaken` and what an outage raises."""
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
        """Whether a batch failed, and the event that it failed for was not yet found or passed."""
        return self._size < self._whole

    def _gathering(self) -> Gathering:
        return Gathering(self._projections, self._skips)

    async def _commit(self, gathering: Gathering, now: Position) -> None:
        async with self._engine.begin() as conn:
            await turn_to(conn, self._generation)
            if self._generation == IDLE:
                # A crash begins a rebuild anew, and its swap makes all before it durable.
                await conn.execute(sa.text("set local synchronous_commit = off"))
            # First, because it locks the rows: a twin at the same place waits here and learns that it was
            # overtaken, where it would otherwise run into the rows that were written meanwhile.
            for each in self._projections:
                await checkpoints.advance(conn, each.name, was=self.position, now=now)
            await gathering.write(conn, Span(self.position, now))
            failpoint("project.before_commit")
        failpoint("project.committed")
        self.position = now

    async def _stop(self, stopped: Stopped) -> None:
        named = {"projection": stopped.projection, "position": stopped.at, "error": stopped.error}
        log.error("projection_stopped", generation=self._generation, **named)
        async with self._engine.begin() as conn:
            await turn_to(conn, self._generation)
            await checkpoints.stop(
                conn, stopped.projection, was=self.position, at=stopped.at, error=stopped.error
            )


async def in_stretches(
    reader: psycopg.AsyncConnection, projections: Sequence[Projection], span: Span
) -> AsyncGenerator[list[Recorded[Fact]], None]:
    """What concerns projections of a span that is final, in order."""
    without = of_no_concern(projections)
    after, upto = span
    while after < upto:
        end = Position(min(after + STRETCH, upto))
        async with aclosing(replay(reader, after, end, without=without)) as stretch:
            async for events in stretch:
                yield events
        after = end


class _OneBehind:
    """Runs one thing after the other in the background, at most one at a time."""

    def __init__(self) -> None:
        self._running: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def then(self, work: Coroutine[None, None, None]) -> None:
        """Wait for what runs, and begin with the next. Raises what the one before raised."""
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
