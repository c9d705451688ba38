"""Pages of the log for those who are further back than the feed's memory, and for lists.

What a correlation id holds together is found through the story of each allocation (`read_models.allocations`), up to
where its projector has come: the log has no index for it, and an old allocation would be a walk through everything
since. From there on the log itself is looked through.

Few read at a time: watchers who catch up wait for one another, and leave the other connections to requests.
"""

import asyncio
from typing import Final, NamedTuple

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from events.connection import ledger_connection
from events.cursors import Cursor, last_up_to
from events.envelope import Recorded
from events.facts import Fact
from events.search import Found, Pick, find, find_at
from events.store import read_range
from events.values import Position, allocation_of
from read_models import allocations, checkpoints

PAGE: Final = 200
READERS: Final = 2
WINDOWS: Final = 50
"""So many windows of the log are looked through for one page of a list, however little was found."""


class Section(NamedTuple):
    """Events in order, how far they were looked for, and a cursor to go on from; None when nothing was there."""

    events: tuple[Recorded[Fact], ...]
    reached: Position
    cursor: Cursor | None


class Past:
    """Reads what is final; up to where that is, its caller knows."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine, self._turns = engine, asyncio.Semaphore(READERS)

    async def page(self, pick: Pick, after: Position, upto: Position, limit: int = PAGE) -> Section:
        """The next events of a pick, and how far they were looked for; perhaps none yet."""
        async with self._turns, self._engine.connect() as conn:
            events, reached = await _page(conn, pick, after, upto, limit)
            if events and (pick.everything or events[-1].position == reached):
                return Section(events, reached, Cursor(events[-1].position, events[-1].epoch))
            last = await last_up_to(await ledger_connection(conn), reached)
            return Section(events, reached, last and last.cursor)

    async def full_page(self, pick: Pick, after: Position, upto: Position, limit: int) -> Section:
        """As `page`, but short only at the end, or when there is little to find in much."""
        section = await self.page(pick, after, upto, limit)
        for _ in range(WINDOWS):
            if section.reached >= upto or len(section.events) == limit:
                break
            more = await self.page(pick, section.reached, upto, limit - len(section.events))
            section = more._replace(events=section.events + more.events)
        return section


async def _page(conn: AsyncConnection, pick: Pick, after: Position, upto: Position, limit: int) -> Found:
    if pick.everything:
        events = await read_range(await ledger_connection(conn), after, upto, limit=limit)
        return Found(events, events[-1].position if len(events) == limit else upto)
    if pick.correlations and not pick.streams:
        told = await _told(conn, pick, after, upto, limit)
        if told.reached > after:
            return told
    return await find(conn, pick, after=after, upto=upto, limit=limit)


async def _told(conn: AsyncConnection, pick: Pick, after: Position, upto: Position, limit: int) -> Found:
    """What the stories tell, up to where they have come; they are read after that, so they hold all up to there."""
    checkpoint = await checkpoints.find(conn, "allocations")
    known = min(upto, checkpoint.position if checkpoint else Position(0))
    if known <= after:
        return Found((), after)
    told: set[Position] = set()
    for correlation in pick.correlations:
        told.update(await allocations.positions(conn, allocation_of(correlation), after=after, limit=limit))
    positions = sorted(position for position in told if after < position <= known)[:limit]
    events = await find_at(conn, pick, positions)
    return Found(events, positions[-1] if len(positions) == limit else known)
