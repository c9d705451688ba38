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
from control_plane.patience import patience
from control_plane.wake import Waiter
from events.connection import ledger_connection
from events.cursors import Cursor, holds, last_up_to
from events.tail import Tail
from events.values import Epoch, Position

log = structlog.get_logger()
BATCH: Final = 500
GATHER_SECONDS: Final = 0.02
_BEGIN_POLL_SECONDS: Final = 0.05


class Feed:
    """The end of the log, and a way to wait for more of it. `incarnation` changes when all watches must end."""

    def __init__(self, engine: AsyncEngine, tail: Tail, waiter: Waiter) -> None:
        self._engine, self._tail, self._waiter = engine, tail, waiter
        self._begun = self._doubtful = False
        self._epoch: Epoch | None = None
        self._grown = asyncio.Event()
        self._asked: set[asyncio.Event] = set()
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
        """How far the log is final, by a look that begins after this call. Raises `NotYetKnown`."""
        looked = asyncio.Event()
        self._asked.add(looked)
        self._waiter.wake()
        try:
            async with patience("not_looked", "the end of the log cannot be seen now; ask again"):
                await looked.wait()
        finally:
            self._asked.discard(looked)
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
        asked = tuple(self._asked)
        if not self._begun or (self._doubtful and not await self._still_there()):
            await self._begin()
        self._doubtful = False
        before = self.final
        batch = await self._tail.batch(before, BATCH)
        if batch.final > before:
            self.ring.add(stretch(before, batch.final, batch.events))
            if batch.events:
                self._epoch = batch.events[-1].epoch
            self._tell()
        if len(batch.events) < BATCH:
            for looked in asked:
                looked.set()
        return batch.final > before

    async def _still_there(self) -> bool:
        """Whether the log is the one that was followed; a wrong no only makes watchers come again.

        The place itself is asked for and not the last event before it: behind a restored event, positions that were
        dead hold events of a later epoch, and these would be passed over.
        """
        if self.final == 0:
            return True
        place = Cursor(self.final, self._epoch)
        async with self._engine.connect() as conn:
            if self._epoch is not None and await holds(await ledger_connection(conn), place):
                return True
        log.warning("feed_begins_anew", after=str(place))
        return False

    async def _begin(self) -> None:
        """Start at the end of the log that there is."""
        final = await self._end()
        async with self._engine.connect() as conn:
            last = await last_up_to(await ledger_connection(conn), final)
        if self._begun:
            self.incarnation += 1
        self.ring, self._epoch, self._begun = Ring(final), last and last.epoch, True
        self._tell()

    async def _end(self) -> Position:
        while not (final := await self._tail.final()):
            # 0 means that nothing is known yet, because somebody appends; or that there is no event, and then the
            # beginning is near enough. What was drawn and given up there is only noted by who reads it.
            first = await self._tail.batch(Position(0), 1)
            if not first.events:
                return first.final
            await asyncio.sleep(_BEGIN_POLL_SECONDS)
        return final

    def _tell(self) -> None:
        grown, self._grown = self._grown, asyncio.Event()
        grown.set()
