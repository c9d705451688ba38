"""The way to a place in the past: wait until the log up to it is final, and read there without being in anybody's way.

What is final never changes, so an answer about the past is the same whenever it is asked for. Who waits holds no
connection, one looks for all who wait for the same thing, and few read at a time: however much of the past is asked
for, the present keeps most of the connections. Only a place that is not final yet is waited for, and an appender that
hangs delays nobody who asks for what was before.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from typing import Final, NamedTuple, Protocol

import psycopg
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from control_plane.decisions.refusals import Conflict, NotYetKnown, Objection
from control_plane.patience import PATIENCE_SECONDS, patience
from control_plane.time_travel.asked import Asked
from events import cursors
from events.connection import ledger_connection
from events.cursors import Last, last_up_to
from events.moments import position_at, settled
from events.values import Position
from read_models import checkpoints

READERS: Final = 3
"""So many connections at a time, those of short looks included."""
_POLL_SECONDS: Final = 0.02


class End(Protocol):
    """The end of the log, as somebody follows it."""

    @property
    def final(self) -> Position: ...

    async def grows_past(self, place: Position, seconds: float) -> bool: ...


class Place(NamedTuple):
    """A place in the log that is final: right behind `position`. `last` is the last event up to there, if there is
    one.
    """

    position: Position
    last: Last | None


class TimeTravel:
    """Reads the past; one for each process."""

    def __init__(self, engine: AsyncEngine, end: End) -> None:
        self._engine, self._end = engine, end
        self._readers = asyncio.Semaphore(READERS)
        self._look, self._look_at = asyncio.Lock(), defaultdict[str, asyncio.Lock](asyncio.Lock)
        self._settled_before: datetime | None = None
        self._known: dict[str, Position] = {}

    @property
    def final(self) -> Position:
        """How far the log is known to be final, without waiting."""
        return self._end.final

    @asynccontextmanager
    async def to(
        self, *wanted: Asked | None, known_to: str | None = None
    ) -> AsyncIterator[tuple[AsyncConnection, tuple[Place, ...]]]:
        """Places, and a connection to read them with; None means now. `known_to` names a projection that must have come
        so far. Raises `Conflict` for what is still to come, and `NotYetKnown`.
        """
        positions = await self.positions(*wanted)
        if known_to is not None:
            async with patience("not_yet_listed", f"the projection {known_to} is not there yet; ask again"):
                await self._known_to(known_to, max(positions))
        async with AsyncExitStack() as stack:
            async with patience("too_many_readers", "others read the past, one after the other; ask again"):
                conn = await stack.enter_async_context(self._connection())
            ledger = await ledger_connection(conn)
            yield conn, tuple([Place(each, await last_up_to(ledger, each)) for each in positions])

    async def positions(self, *wanted: Asked | None) -> tuple[Position, ...]:
        """The positions of places, once the log is final up to each. Raises as `to`."""
        async with patience("not_yet_final", "what belongs to there is still being written; ask again"):
            found = tuple([await self._position(each) for each in wanted])
            await self._final_to(max(found))
            return found

    async def _position(self, wanted: Asked | None) -> Position:
        if isinstance(wanted, datetime):
            await self._settle(wanted)
            async with self._ledger() as ledger:
                return await position_at(ledger, wanted)
        if wanted is not None and wanted <= self._end.final:
            return wanted
        async with self._ledger() as ledger:
            drawn = await cursors.drawn(ledger)
        if wanted is not None and wanted > drawn:
            why = f"the ledger has not come to position {wanted}: its last is {drawn}"
            raise Conflict(Objection("not_reached", why))
        return drawn if wanted is None else wanted

    async def _settle(self, moment: datetime) -> None:
        while not self._is_settled(moment):
            # One looks for all who wait, and each look begins with a transaction of its own.
            async with self._look:
                if self._is_settled(moment):
                    return
                async with self._ledger() as ledger:
                    found = await settled(ledger)
                if moment > found.now:
                    why = f"{moment.isoformat()} is still to come: it is {found.now.isoformat()} by the ledger's clock"
                    raise Conflict(Objection("in_the_future", why))
                # What was settled once stays so, though somebody who began before may come to append only now.
                self._settled_before = max(filter(None, (self._settled_before, found.before)), default=None)
                if not self._is_settled(moment):
                    await asyncio.sleep(_POLL_SECONDS)

    def _is_settled(self, moment: datetime) -> bool:
        return self._settled_before is not None and moment < self._settled_before

    async def _final_to(self, position: Position) -> None:
        while self._end.final < position:
            await self._end.grows_past(Position(position - 1), PATIENCE_SECONDS)

    async def _known_to(self, projection: str, position: Position) -> None:
        while not self._is_known(projection, position):
            # As in `_settle`, one looks for all.
            async with self._look_at[projection]:
                if self._is_known(projection, position):
                    return
                self._known[projection] = await self._checkpoint(projection, position)
                if not self._is_known(projection, position):
                    await asyncio.sleep(_POLL_SECONDS)

    def _is_known(self, projection: str, position: Position) -> bool:
        return self._known.get(projection, -1) >= position

    async def _checkpoint(self, projection: str, wanted: Position) -> Position:
        async with self._connection() as conn:
            found = await checkpoints.find(conn, projection)
        if found is None:
            return Position(0)
        if found.stop is not None and found.position < wanted:
            why = (
                f"the projection {projection}, which lists what there was, stopped at position"
                f" {found.stop.at}: {found.stop.error}"
            )
            raise NotYetKnown(Objection("projection_stopped", why))
        return found.position

    @asynccontextmanager
    async def _ledger(self) -> AsyncIterator[psycopg.AsyncConnection[tuple[object, ...]]]:
        async with self._connection() as conn:
            yield await ledger_connection(conn)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AsyncConnection]:
        async with self._readers, self._engine.connect() as conn:
            yield conn
