"""One tailer of the log for all watchers of a process.

The tailer alone asks how far the log is final; watchers wait for that position to grow and read what they want
up to it, each from its own place. A watcher that falls behind delays nobody.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Final
from uuid import UUID

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from control_plane.follow import RECONNECT_SECONDS
from control_plane.handle import ledger_connection
from control_plane.outage import DATABASE_AWAY
from control_plane.wake import Waiter
from events.envelope import Recorded
from events.facts import Fact
from events.store import read_range
from events.tail import Tail
from events.values import Position

HEARTBEAT_SECONDS: Final = 15.0
PAGE: Final = 200
log = structlog.get_logger()


class Feed:
    """How far the log is final, and a way to wait for more of it."""

    def __init__(self, engine: AsyncEngine, tail: Tail, waiter: Waiter) -> None:
        self._engine, self._tail, self._waiter = engine, tail, waiter
        self._grown = asyncio.Condition()
        self.final = Position(0)

    async def run(self) -> None:
        """Follow the end of the log until cancelled; watchers wait while the database is away."""
        while True:
            try:
                grew = await self._look()
            except DATABASE_AWAY as error:
                log.warning("feed_restarts", error=str(error))
                await asyncio.sleep(RECONNECT_SECONDS)
            else:
                await self._waiter.wait(busy=grew)

    async def _look(self) -> bool:
        final = await self._tail.final()
        if final <= self.final:
            return False
        async with self._grown:
            self.final = final
            self._grown.notify_all()
        return True

    async def watch(
        self, after: Position, correlation_id: UUID | None
    ) -> AsyncIterator[tuple[Recorded[Fact], ...]]:
        """Final events after a position, as they come; an empty tuple now and then says that all is well."""
        position = after
        while True:
            upto = self.final
            while position < upto:
                events = await self.read(position, upto, correlation_id, PAGE)
                position = events[-1].position if len(events) == PAGE else upto
                if events:
                    yield events
            if not await self._grows_past(position):
                yield ()

    async def read(
        self, after: Position, upto: Position, correlation_id: UUID | None, limit: int
    ) -> tuple[Recorded[Fact], ...]:
        async with self._engine.connect() as conn:
            ledger = await ledger_connection(conn)
            return tuple(await read_range(ledger, after, upto, correlation_id=correlation_id, limit=limit))

    async def _grows_past(self, position: Position) -> bool:
        try:
            async with asyncio.timeout(HEARTBEAT_SECONDS), self._grown:
                await self._grown.wait_for(lambda: self.final > position)
        except TimeoutError:
            return False
        return True
