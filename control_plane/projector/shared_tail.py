"""One reader of the end of the ledger for all live followers of the projector."""

import asyncio

from events.ledger.tail import Batch, Tail
from events.values import Position


class SharedTail(Tail):
    """A tail that keeps the newest batch that it has read, and returns what another caller already read from there.

    The followers of the projector read the same events, mostly at the same time. Reading and decoding them once for
    each follower took more processor time than writing their rows. Final events never change, so a kept batch stays
    correct; only its end and its time (`Batch.at`) may be older than those of a new read.
    """

    def __init__(self, dsn: str, name: str) -> None:
        super().__init__(dsn, name)
        self._kept: tuple[Position, Batch] | None = None
        self._reading = asyncio.Lock()

    async def batch(self, after: Position, limit: int) -> Batch:
        """Return the next final events after a position, like `Tail.batch`."""
        async with self._reading:
            if (kept := self._from_kept(after, limit)) is not None:
                return kept
            read = await super().batch(after, limit)
            if self._kept is None or read.final > self._kept[1].final:
                self._kept = after, read
            return read

    async def _forget(self) -> None:
        # After an outage, the database may have been restored, and have other events at these positions.
        self._kept = None
        await super()._forget()

    def _from_kept(self, after: Position, limit: int) -> Batch | None:
        if self._kept is None:
            return None
        begin, batch = self._kept
        if not begin <= after < batch.final:
            return None
        events = tuple(each for each in batch.events if each.position > after)
        if len(events) > limit:
            return Batch(events[:limit], events[limit - 1].position, batch.at)
        return Batch(events, batch.final, batch.at)
