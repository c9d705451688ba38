"""Reading the past: wait until the ledger is final up to a position, and read there without delaying other requests.

Final events never change, so an answer about the past is the same at any time. Of all requests that wait for the ledger
or for the same projection, only one polls, and none holds a connection between polls. Few requests read at a time. So
however many requests read the past, requests about the present keep most of the connections. Only positions that are
not final yet are waited for, and a hanging appender does not delay requests about earlier positions.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from itertools import starmap
from typing import Final, NamedTuple, Protocol

import psycopg
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from control_plane.decisions.refusals import Conflict, NotYetKnown, Objection
from control_plane.time_travel.moment import Moment
from control_plane.time_travel.time_limit import TIME_LIMIT_SECONDS, time_limit
from events.ledger import cursors
from events.ledger.connection import ledger_connection
from events.ledger.cursors import Last, lasts_up_to
from events.ledger.moments import positions_at, settled
from events.values import Position
from read_models import checkpoints

READERS: Final = 3
"""Maximum number of database connections that requests for past states use at a time, including those that poll."""
_POLL_SECONDS: Final = 0.02


class End(Protocol):
    """Interface to the end of the ledger: the position up to which it is final, and a wait for later events."""

    @property
    def final(self) -> Position:
        """The position up to which the ledger is final."""
        ...

    async def grows_past(self, place: Position, seconds: float) -> bool:
        """Wait until the ledger is final beyond position `place`; return False after a timeout of `seconds`."""
        ...


class Place(NamedTuple):
    """A position up to which the ledger is final. `last` is the last event up to it, if there is one."""

    position: Position
    last: Last | None


class TimeTravel:
    """Reads past states of the ledger and of read models; each process has one instance."""

    def __init__(self, engine: AsyncEngine, end: End) -> None:
        self._engine, self._end = engine, end
        self._readers = asyncio.Semaphore(READERS)
        self._poll, self._poll_of = asyncio.Lock(), defaultdict[str, asyncio.Lock](asyncio.Lock)
        self._settled_before: datetime | None = None
        self._known: dict[str, Position] = {}

    @asynccontextmanager
    async def to(
        self, *wanted: Moment | None, known_to: str | None = None
    ) -> AsyncIterator[tuple[AsyncConnection, tuple[Place, ...]]]:
        """Yield a connection for reading, and the positions of the requested moments (None means now). `known_to` names
        a projection that must have reached them. Raises `Conflict` for a future moment, and `NotYetKnown` on a timeout.
        """
        positions = await self.positions(*wanted)
        if known_to is not None:
            async with time_limit(
                "not_yet_listed", f"the projection {known_to} has not reached this position yet; retry"
            ):
                await self._known_to(known_to, max(positions))
        async with AsyncExitStack() as stack:
            async with time_limit("too_many_readers", "too many requests read the past at once; retry"):
                conn = await stack.enter_async_context(self._connection())
            ledger = await ledger_connection(conn)
            lasts = await lasts_up_to(ledger, positions)
            yield conn, tuple(starmap(Place, zip(positions, lasts, strict=True)))

    async def positions(self, *wanted: Moment | None) -> tuple[Position, ...]:
        """Return the positions of the requested moments, once the ledger is final up to each. Raises `Conflict` for a
        future moment, and `NotYetKnown` on a timeout.
        """
        async with time_limit("not_yet_final", "events at this position are still being written; retry"):
            times = [each for each in wanted if isinstance(each, datetime)]
            at = await self._positions_at(times) if times else {}
            found = tuple(
                [at[each] if isinstance(each, datetime) else await self._position(each) for each in wanted]
            )
            await self._final_to(max(found))
            return found

    async def _positions_at(self, times: Sequence[datetime]) -> dict[datetime, Position]:
        await self._settle(max(times))
        # One query for all: the history of the capacity has up to 200 times.
        async with self._ledger() as ledger:
            return dict(zip(times, await positions_at(ledger, times), strict=True))

    async def _position(self, wanted: Position | None) -> Position:
        if wanted is not None and wanted <= self._end.final:
            return wanted
        async with self._ledger() as ledger:
            drawn = await cursors.drawn(ledger)
        if wanted is not None and wanted > drawn:
            message = f"position {wanted} does not exist yet: the last position of the ledger is {drawn}"
            raise Conflict(Objection("position_not_reached", message))
        return drawn if wanted is None else wanted

    async def _settle(self, moment: datetime) -> None:
        while not self._is_settled(moment):
            # One request polls on behalf of all that wait, and each poll begins with a transaction of its own.
            async with self._poll:
                if self._is_settled(moment):
                    return
                async with self._ledger() as ledger:
                    found = await settled(ledger)
                if moment > found.now:
                    message = f"{moment.isoformat()} is in the future: the ledger's clock is at {found.now.isoformat()}"
                    raise Conflict(Objection("in_the_future", message))
                # A moment that was settled once stays settled, even if an older transaction only now begins to append.
                self._settled_before = max(filter(None, (self._settled_before, found.before)), default=None)
                if not self._is_settled(moment):
                    await asyncio.sleep(_POLL_SECONDS)

    def _is_settled(self, moment: datetime) -> bool:
        return self._settled_before is not None and moment < self._settled_before

    async def _final_to(self, position: Position) -> None:
        while self._end.final < position:
            await self._end.grows_past(Position(position - 1), TIME_LIMIT_SECONDS)

    async def _known_to(self, projection: str, position: Position) -> None:
        while not self._is_known(projection, position):
            # As in `_settle`, one request polls on behalf of all.
            async with self._poll_of[projection]:
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
            message = (
                f"the projection {projection}, which this answer needs, is stopped at position"
                f" {found.stop.at}: {found.stop.error}"
            )
            raise NotYetKnown(Objection("projection_stopped", message))
        return found.position

    @asynccontextmanager
    async def _ledger(self) -> AsyncIterator[psycopg.AsyncConnection[tuple[object, ...]]]:
        async with self._connection() as conn:
            yield await ledger_connection(conn)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AsyncConnection]:
        async with self._readers, self._engine.connect() as conn:
            yield conn
