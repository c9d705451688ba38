"""One tailer of the log for all watchers of a process.

It alone asks how far the log is final, reads what is new and encodes it; watchers are told that there is more and
take it from the ring, each from its own place. After every look it rests for a moment, so that a busy log comes in
small batches and fifty watchers are woken fifty times a second and not at every commit. A watcher that falls behind
delays nobody.

A crash leaves nothing: the tailer begins at the log's end, and what is further back is read from the database. When
the database was away it may be another one that comes back, restored from a backup. Then all watches end, and who
asks to go on from a place that is no more is told so.
"""

import asyncio
from typing import Final

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from control_plane.api.past import Past
from control_plane.api.ring import Ring, stretch
from control_plane.follow import RECONNECT_SECONDS
from control_plane.outage import DATABASE_AWAY
from control_plane.wake import Waiter
from events.connection import ledger_connection
from events.cursors import Cursor, drawn, holds, last_event
from events.tail import Tail
from events.values import Position

log = structlog.get_logger()
BATCH: Final = 500
GATHER_SECONDS: Final = 0.02
_BEGIN_POLL_SECONDS: Final = 0.05


class Feed:
    """The end of the log, and a way to wait for more of it. `incarnation` changes when all watches must end."""

    def __init__(self, engine: AsyncEngine, tail: Tail, waiter: Waiter) -> None:
        self._engine, self._tail, self._waiter = engine, tail, waiter
        self._last: Cursor | None = None
        self._doubtful = False
        self._grown = asyncio.Event()
        self._asked: list[asyncio.Event] = []
        self.past = Past(engine)
        self.ring = Ring(Position(0))
        self.incarnation = 0

    @property
    def final(self) -> Position:
        """How far the log was final at the last look; 0 before the first."""
        return self.ring.final

    async def run(self) -> None:
        """Follow the end of the log until cancelled; watchers wait while the database is away."""
        while True:
            try:
                grew = await self._look()
            except DATABASE_AWAY as error:
                log.warning("feed_restarts", error=str(error))
                self._doubtful = True
                await asyncio.sleep(RECONNECT_SECONDS)
            else:
                if grew:
                    await asyncio.sleep(GATHER_SECONDS)
                await self._waiter.wait(busy=grew)

    async def up_to_date(self) -> Position:
        """How far the log is final, by a look that begins after this call."""
        looked = asyncio.Event()
        self._asked.append(looked)
        self._waiter.wake()
        await looked.wait()
        return self.final

    async def grows_past(self, place: Position, seconds: float) -> bool:
        """Wait for more than there is at a place, or for all watches to end; False when neither came in time."""
        incarnation = self.incarnation
        try:
            async with asyncio.timeout(seconds):
                while self.final <= place and self.incarnation == incarnation:
                    await self._grown.wait()
        except TimeoutError:
            return False
        return True

    def end_watches(self) -> None:
        """Have every watch end; its watcher comes again, here or elsewhere."""
        self.incarnation += 1
        self._tell()

    async def _look(self) -> bool:
        asked = len(self._asked)
        if self._last is None or (self._doubtful and not await self._still_there(self._last)):
            await self._begin()
        self._doubtful = False
        before = self.final
        batch = await self._tail.batch(before, BATCH)
        if batch.final > before:
            self.ring.add(stretch(before, batch.final, batch.events))
            if batch.events:
                self._last = Cursor(batch.events[-1].position, batch.events[-1].epoch)
            self._tell()
        if len(batch.events) < BATCH:
            self._answer(asked)
        return batch.final > before

    async def _still_there(self, last: Cursor) -> bool:
        async with self._engine.connect() as conn:
            if await holds(await ledger_connection(conn), last):
                return True
        log.error("feed_lost_its_log", last=str(last))
        return False

    async def _begin(self) -> None:
        """Start at the end of the log that there is."""
        final = await self._tail.final()
        async with self._engine.connect() as conn:
            ledger = await ledger_connection(conn)
            # 0 also means that somebody appends, and nothing is known yet.
            while final == 0 and await drawn(ledger) > 0:
                await asyncio.sleep(_BEGIN_POLL_SECONDS)
                final = await self._tail.final()
            last = await last_event(ledger, final)
        if self._last is not None:
            self.incarnation += 1
        self.ring, self._last = Ring(final), last
        self._tell()

    def _tell(self) -> None:
        grown, self._grown = self._grown, asyncio.Event()
        grown.set()

    def _answer(self, asked: int) -> None:
        for looked in self._asked[:asked]:
            looked.set()
        del self._asked[:asked]
