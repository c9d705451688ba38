"""One tailer of the log for all watchers of a process.

The tailer alone asks how far the log is final; watchers wait for that position to grow and read what they want
up to it, each from its own place. A watcher that falls behind delays nobody.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Final
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine

from control_plane.handle import ledger_connection
from control_plane.wake import Waiter
from events.envelope import Recorded
from events.facts import Fact
from events.store import read_range
from events.tail import Tail
from events.values import Position

HEARTBEAT_SECONDS: Final = 15.0
PAGE: Final = 200


class Feed:
    """How far the log is final, and a way to wait for more of it."""

    def __init__(self, engine: AsyncEngine, tail: Tail, waiter: Waiter) -> None:
        self._engine, self._tail, self._waiter = engine, tail, waiter
        self._grown = asyncio.Condition()
        self.final = Position(0)

    async def run(self) -> None:
        """Follow the end of the log until cancelled."""
        while True:
            final = await self._tail.final()
            if grew := final > self.final:
                async with self._grown:
                    self.final = final
                    self._grown.notify_all()
            await self._waiter.wait(busy=grew)

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
