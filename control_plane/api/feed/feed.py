"""One tailer of the ledger for all watchers of a process.

Only the tailer reads how far the ledger is final, reads the new events and encodes them. It wakes the watchers, and
each reads from the ring of events in memory at its own position. After each poll it pauses for `GATHER_SECONDS`, so
that the events of a busy ledger arrive in small batches, and all watchers are woken once per batch and not at every
commit. A slow watcher delays no other. Without watches, the tailer reads nothing.

After a crash of the process, the tailer begins at the end of the ledger, and older events are read from the database.
After an outage, the database may have been restored from a backup. If so, all watches end, and a cursor that the
restored ledger does not contain is refused.
"""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from control_plane.api.feed.ledger_pages import Past
from control_plane.api.feed.ring import Ring, ledger_range
from control_plane.following.follow import RECONNECT_SECONDS
from control_plane.following.wake import Waiter
from control_plane.outage import DATABASE_UNAVAILABLE, rest
from control_plane.time_travel.time_limit import time_limit
from events.ledger.connection import ledger_connection
from events.ledger.cursors import Cursor, holds, last_up_to
from events.ledger.tail import Tail
from events.values import Epoch, Position, StreamId

log = structlog.get_logger()
BATCH: Final = 500
GATHER_SECONDS: Final = 0.02
_BEGIN_POLL_SECONDS: Final = 0.05


class Feed:
    """The newest events of the ledger in memory, for all watches of a process. Every watch ends when `incarnation` is
    increased: because another ledger may have replaced the one that the feed followed, or because the process ends.
    """

    def __init__(self, engine: AsyncEngine, tail: Tail, waiter: Waiter) -> None:
        self._engine, self._tail, self._waiter = engine, tail, waiter
        self._begun = self._may_differ = False
        self._epoch: Epoch | None = None
        self._grown = asyncio.Event()
        self._waiting: set[asyncio.Event] = set()
        self._alerts: dict[StreamId, set[asyncio.Event]] = {}
        self._users = 0
        self._wanted = asyncio.Event()
        self.past = Past(engine)
        self.ring = Ring(Position(0))
        self.incarnation = 0

    @property
    def final(self) -> Position:
        """Position up to which the ledger was final at the last poll, which may be long ago without watches; 0 before
        the first poll.
        """
        return self.ring.final

    async def run(self) -> None:
        """Follow the end of the ledger while there are watches or requests that wait for it, until cancelled. Watchers
        wait while the database is unavailable.
        """
        while True:
            try:
                grew = await self._poll()
            except DATABASE_UNAVAILABLE as error:
                log.warning("event_feed_database_connection_lost", error=str(error))
                self._may_differ = True
                await rest(RECONNECT_SECONDS)
            else:
                if grew:
                    await asyncio.sleep(GATHER_SECONDS)
                if self._users or self._waiting:
                    await self._waiter.wait(busy=grew)
                else:
                    await self._rest()

    async def up_to_date(self) -> Position:
        """Poll the ledger now and return the position up to which it is final. Raises `NotYetKnown` on a timeout."""
        polled = asyncio.Event()
        self._waiting.add(polled)
        self._wanted.set()
        self._waiter.wake()
        try:
            async with time_limit(
                "ledger_end_unknown", "the end of the ledger could not be read in time; retry"
            ):
                await polled.wait()
        finally:
            self._waiting.discard(polled)
        return self.final

    async def grows_past(self, position: Position, seconds: float) -> bool:
        """Wait for events after a position, or for the end of all watches; return False if neither occurs in time."""
        incarnation = self.incarnation
        try:
            with self._used():
                async with asyncio.timeout(seconds):
                    while self.final <= position and self.incarnation == incarnation:
                        await self._grown.wait()
        except TimeoutError:
            return False
        return True

    @contextmanager
    def alert(self, streams: Iterable[StreamId]) -> Iterator[asyncio.Event]:
        """Provide an asyncio event that is set when the feed reads a new event of one of these streams: before any
        watch can send that event or a later one from memory. The feed reads the ledger while the `with` block runs.
        """
        alert, distinct = asyncio.Event(), frozenset(streams)
        for stream in distinct:
            self._alerts.setdefault(stream, set()).add(alert)
        try:
            with self._used():
                yield alert
        finally:
            for stream in distinct:
                alerts = self._alerts[stream]
                alerts.discard(alert)
                if not alerts:
                    del self._alerts[stream]

    def end_watches(self) -> None:
        """End every watch; its client then reconnects to this API process or to another one."""
        self.incarnation += 1
        self._wake_watchers()

    async def _poll(self) -> bool:
        waiting = tuple(self._waiting)
        if not self._begun or (self._may_differ and not await self._is_same_ledger()):
            await self._begin()
        self._may_differ = False
        before = self.final
        batch = await self._tail.batch(before, BATCH)
        if batch.final > before:
            self.ring.add(ledger_range(before, batch.final, batch.events))
            self._set_alerts(each.stream for each in batch.events if self._alerts)
            if batch.events:
                self._epoch = batch.events[-1].epoch
            self._wake_watchers()
        if len(batch.events) < BATCH:
            self._waiting.difference_update(waiting)
            for polled in waiting:
                polled.set()
        return batch.final > before

    @contextmanager
    def _used(self) -> Iterator[None]:
        self._users += 1
        self._wanted.set()
        try:
            yield
        finally:
            self._users -= 1

    async def _rest(self) -> None:
        """Wait until the feed is used again. Until then, reading and encoding each event would have no use."""
        self._wanted.clear()
        await self._wanted.wait()
        # The ledger may have grown by any number of events, which a new watch reads from the database, and it may have
        # been restored. No watch has read anything from this feed since.
        self._begun = False

    def _set_alerts(self, streams: Iterable[StreamId]) -> None:
        for stream in streams:
            for alert in self._alerts.get(stream, ()):
                alert.set()

    async def _is_same_ledger(self) -> bool:
        """Return whether the database still has the ledger that this feed followed, and not one restored from a backup.

        A wrong False only makes watchers reconnect. The check looks up the last position that this feed has read, even
        if no event has this position. Looking up the last event would not be enough: a restored ledger can contain this
        event and give later positions to new events. The feed would skip new events at positions that it has read.
        """
        if self.final == 0:
            return True
        cursor = Cursor(self.final, self._epoch)
        async with self._engine.connect() as conn:
            if self._epoch is not None and await holds(await ledger_connection(conn), cursor):
                return True
        log.warning("event_feed_restarted_at_ledger_end", cursor_not_in_ledger=str(cursor))
        return False

    async def _begin(self) -> None:
        """Set the feed to the present end of the ledger. If the feed was in use, another ledger has replaced the one
        that it followed, such as a restored backup: end all watches.
        """
        final = await self._end()
        async with self._engine.connect() as conn:
            last = await last_up_to(await ledger_connection(conn), final)
        if self._begun:
            self.incarnation += 1
        self.ring, self._epoch, self._begun = Ring(final), last and last.epoch, True
        # An event before this end may belong to the streams of a watch that has opened meanwhile.
        self._set_alerts([*self._alerts])
        self._wake_watchers()

    async def _end(self) -> Position:
        while not (final := await self._tail.final()):
            # 0 means that the bound is unknown because an append is running, or that the ledger has no event. In the
            # latter case its beginning is close enough. Dead positions there are recorded only by reading them.
            first = await self._tail.batch(Position(0), 1)
            if not first.events:
                return first.final
            await asyncio.sleep(_BEGIN_POLL_SECONDS)
        return final

    def _wake_watchers(self) -> None:
        grown, self._grown = self._grown, asyncio.Event()
        grown.set()
