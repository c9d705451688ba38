"""The way to a place in the past: wait until the log up to it is final, and read there without being in anybody's way.

What is final never changes, so an answer about the past is the same whenever it is asked for. Who waits holds no
connection, and few read at a time: however much of the past is asked for, the present keeps most of the connections. Only
a place that is not final yet is waited for, and an appender that hangs delays nobody who asks for what was before.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Final, NamedTuple, Protocol

import psycopg
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from control_plane.decisions.refusals import Conflict, NotYetKnown, Objection
from control_plane.time_travel.asked import Asked
from events import cursors
from events.connection import ledger_connection
from events.moments import Last, last_up_to, position_at, settled
from events.values import Position
from read_models import checkpoints

PATIENCE_SECONDS: Final = 5.0
"""An appender delays readers no longer than this (P29)."""
READERS: Final = 3
_POLL_SECONDS: Final = 0.02


class End(Protocol):
    """The end of the log, as somebody follows it."""

    @property
    def final(self) -> Position: ...

    async def grows_past(self, place: Position, seconds: float) -> bool: ...


class Place(NamedTuple):
    """A place in the log that is final: right behind `position`. `last` is the last event up to there, if there is one."""

    position: Position
    last: Last | None


class TimeTravel:
    """Reads the past; one for each process."""

    def __init__(self, engine: AsyncEngine, end: End) -> None:
        self._engine, self._end = engine, end
        self._readers, self._look = asyncio.Semaphore(READERS), asyncio.Lock()
        self._settled_before: datetime | None = None

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
        async with _patience("not_yet_final", "what belongs to there is still being written; ask again"):
            positions = [await self._position(each) for each in wanted]
            await self._final_to(max(positions))
        if known_to is not None:
            async with _patience("not_yet_listed", f"the projection {known_to} is not there yet; ask again"):
                await self._known_to(known_to, max(positions))
        async with self._readers, self._engine.connect() as conn:
            ledger = await ledger_connection(conn)
            yield conn, tuple([Place(each, await last_up_to(ledger, each)) for each in positions])

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
        while True:
            async with self._engine.connect() as conn:
                found = await checkpoints.find(conn, projection)
            if found is not None and found.position >= position:
                return
            if found is not None and found.stop is not None:
                why = (
                    f"the projection {projection}, which lists what there was, stopped at position"
                    f" {found.stop.at}: {found.stop.error}"
                )
                raise NotYetKnown(Objection("projection_stopped", why))
            await asyncio.sleep(_POLL_SECONDS)

    @asynccontextmanager
    async def _ledger(self) -> AsyncIterator[psycopg.AsyncConnection[tuple[object, ...]]]:
        async with self._engine.connect() as conn:
            yield await ledger_connection(conn)


@asynccontextmanager
async def _patience(code: str, why: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield
    except TimeoutError:
        raise NotYetKnown(Objection(code, why)) from None
