"""Pages of the ledger, for lists and for watchers that are behind the events that the feed keeps in memory.

Events with a correlation id are found through the timeline of the allocation (`read_models.allocations`), up to the
checkpoint of its projector: the ledger has no index on correlation ids, and for an old allocation a scan would read
everything since its request. Events of a project are found in the same way (`read_models.projects`). After the
checkpoint, the ledger itself is scanned.

The number of concurrent readers is limited, so that watchers that catch up leave connections to other requests.
"""

import asyncio
from typing import Final, NamedTuple

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from events.envelope import Recorded
from events.facts import Fact
from events.ledger.connection import ledger_connection
from events.ledger.cursors import Cursor, last_up_to
from events.ledger.search import EventFilter, Found, find, find_listed, find_newest
from events.ledger.store import read_range
from events.values import Position, allocation_of
from read_models import allocations, checkpoints, projects

PAGE: Final = 200
LISTED: Final = 2_000
"""Number of listed positions that one query compares with a filter: more than the events of a page, because a filter by
type or actor can select few of the events of a project.
"""
READERS: Final = 2
WINDOWS: Final = 50
"""Maximum number of ledger ranges that are scanned for one page of a list, however few events match."""


class Section(NamedTuple):
    """Result of a scan of the ledger: the matching events in order, and the position at which the scan ended.

    `cursor` is the cursor of the last event up to that position, None before the first event of the ledger.
    """

    events: tuple[Recorded[Fact], ...]
    reached: Position
    cursor: Cursor | None


class Past:
    """Reader of final events of the ledger: no running transaction can still add an event before a final event.

    The caller passes the position up to which the ledger is final.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine, self._turns = engine, asyncio.Semaphore(READERS)

    async def page(self, pick: EventFilter, after: Position, upto: Position, limit: int = PAGE) -> Section:
        """Return the next events that match a filter, possibly none, and the position up to which the scan went."""
        async with self._turns, self._engine.connect() as conn:
            events, reached = await _page(conn, pick, after, upto, limit)
            if events and (pick.everything or events[-1].position == reached):
                return Section(events, reached, Cursor(events[-1].position, events[-1].epoch))
            last = await last_up_to(await ledger_connection(conn), reached)
            return Section(events, reached, last and last.cursor)

    async def full_page(self, pick: EventFilter, after: Position, upto: Position, limit: int) -> Section:
        """Return `limit` events that match a filter, or fewer if the scan ends first.

        Unlike `page`, this continues the scan while the page has fewer events than `limit`. The scan ends at position
        `upto`, or after `WINDOWS` further calls of `page`.
        """
        section = await self.page(pick, after, upto, limit)
        for _ in range(WINDOWS):
            if section.reached >= upto or len(section.events) == limit:
                break
            more = await self.page(pick, section.reached, upto, limit - len(section.events))
            section = more._replace(events=section.events + more.events)
        return section

    async def newest(
        self, pick: EventFilter, begin: Position, before: Position, limit: int, windows: int = WINDOWS
    ) -> Found:
        """Return the last events that match a filter, newest first, after `begin` and before `before`.

        `reached` of the result is the lowest position that the scan has covered: it ends after at most `windows` ranges
        of the ledger. The result may have fewer events than `limit` although further events match.
        """
        found = Found((), before)
        for _ in range(windows):
            if found.reached <= begin + 1 or len(found.events) == limit:
                break
            async with self._turns, self._engine.connect() as conn:
                more = await _newest(conn, pick, begin, found.reached, limit - len(found.events))
            found = Found(found.events + more.events, more.reached)
        return found


async def _newest(
    conn: AsyncConnection, pick: EventFilter, begin: Position, before: Position, limit: int
) -> Found:
    if projection := _listing(pick):
        listed = await _listed_up_to(conn, projection)
        if before <= listed + 1:
            return await _find_listed(conn, pick, begin, Position(before - 1), limit, descending=True)
        begin = max(begin, listed)
    return await find_newest(conn, pick, after=begin, before=before, limit=limit)


async def _page(
    conn: AsyncConnection, pick: EventFilter, after: Position, upto: Position, limit: int
) -> Found:
    if pick.everything:
        events = await read_range(await ledger_connection(conn), after, upto, limit=limit)
        return Found(events, events[-1].position if len(events) == limit else upto)
    if projection := _listing(pick):
        reached = min(upto, await _listed_up_to(conn, projection))
        if reached > after:
            return await _find_listed(conn, pick, after, reached, limit)
    return await find(conn, pick, after=after, upto=upto, limit=limit)


def _listing(pick: EventFilter) -> str | None:
    """Return the projection with the tables that list the positions of the matching events, possibly among others; None
    if there is none, or if the events are found by their streams.
    """
    if pick.streams:
        return None
    return "allocations" if pick.correlations else "project_events" if pick.projects else None


async def _listed_up_to(conn: AsyncConnection, projection: str) -> Position:
    """Return the checkpoint of a projection. Its tables have all events up to it, if they are read later."""
    checkpoint = await checkpoints.find(conn, projection)
    return checkpoint.position if checkpoint else Position(0)


async def _find_listed(
    conn: AsyncConnection,
    pick: EventFilter,
    after: Position,
    upto: Position,
    limit: int,
    *,
    descending: bool = False,
) -> Found:
    """Return the events of a range that match a filter by correlation or project, in order or, with `descending`,
    newest first. Read models list their positions. `reached` of the result is the last position that the search has
    covered: with `descending` the lowest.
    """
    positions = await _listed(conn, pick, after, upto, descending=descending)
    end = Position(after + 1) if descending else upto
    if not positions:
        return Found((), end)
    found = await find_listed(conn, pick, positions, limit)
    is_cut = len(found.events) == limit or len(positions) == LISTED
    return found if is_cut else found._replace(reached=end)


async def _listed(
    conn: AsyncConnection, pick: EventFilter, after: Position, upto: Position, *, descending: bool
) -> list[Position]:
    """Return the next `LISTED` positions of events of the correlations or projects of a filter; with `descending`, the
    last ones in the range, newest first.
    """
    if not pick.correlations:
        return await projects.positions(
            conn, pick.projects, after=after, upto=upto, limit=LISTED, descending=descending
        )
    listed = set[Position]()
    for correlation in pick.correlations:
        found = await allocations.positions(
            conn, allocation_of(correlation), after=after, upto=upto, limit=LISTED, descending=descending
        )
        listed.update(found)
    return sorted(listed, reverse=descending)[:LISTED]
