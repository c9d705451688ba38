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
from events.ledger.search import EventFilter, Found, find, find_at, find_newest
from events.ledger.store import read_range
from events.values import Position, allocation_of
from read_models import allocations, checkpoints, projects

PAGE: Final = 200
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

    async def newest(self, pick: EventFilter, begin: Position, before: Position, limit: int) -> Found:
        """Return the last events that match a filter, newest first, after `begin` and before `before`.

        `reached` of the result is the lowest position that the scan has covered. The result may have fewer events than
        `limit` although further events match.
        """
        found = Found((), before)
        for _ in range(WINDOWS):
            if found.reached <= begin + 1 or len(found.events) == limit:
                break
            async with self._turns, self._engine.connect() as conn:
                more = await _newest(conn, pick, begin, found.reached, limit - len(found.events))
            found = Found(found.events + more.events, more.reached)
        return found


async def _newest(
    conn: AsyncConnection, pick: EventFilter, begin: Position, before: Position, limit: int
) -> Found:
    if not pick.streams and (pick.correlations or pick.projects):
        listed = await _listed_up_to(conn, "allocations" if pick.correlations else "project_events")
        if before <= listed + 1:
            return await _newest_listed(conn, pick, begin, before, limit)
        begin = max(begin, listed)
    return await find_newest(conn, pick, after=begin, before=before, limit=limit)


async def _listed_up_to(conn: AsyncConnection, projection: str) -> Position:
    checkpoint = await checkpoints.find(conn, projection)
    return checkpoint.position if checkpoint else Position(0)


async def _newest_listed(
    conn: AsyncConnection, pick: EventFilter, begin: Position, before: Position, limit: int
) -> Found:
    """Return the last matching events of some projects or timelines. Read models have the positions of these events."""
    listed: set[Position] = set()
    if pick.correlations:
        for correlation in pick.correlations:
            found = allocations.positions(
                conn, allocation_of(correlation), after=begin, before=before, limit=limit
            )
            listed.update(await found)
    else:
        upto = Position(before - 1)
        listed.update(
            await projects.positions(
                conn, pick.projects, after=begin, upto=upto, limit=limit, descending=True
            )
        )
    positions = sorted(listed, reverse=True)[:limit]
    events = await find_at(conn, pick, positions)
    reached = positions[-1] if len(positions) == limit else Position(begin + 1)
    return Found(tuple(reversed(events)), reached)


async def _page(
    conn: AsyncConnection, pick: EventFilter, after: Position, upto: Position, limit: int
) -> Found:
    if pick.everything:
        events = await read_range(await ledger_connection(conn), after, upto, limit=limit)
        return Found(events, events[-1].position if len(events) == limit else upto)
    if pick.correlations and not pick.streams:
        found = await _from_timelines(conn, pick, after, upto, limit)
        if found.reached > after:
            return found
    elif pick.projects and not pick.streams:
        found = await _from_projects(conn, pick, after, upto, limit)
        if found.reached > after:
            return found
    return await find(conn, pick, after=after, upto=upto, limit=limit)


async def _from_projects(
    conn: AsyncConnection, pick: EventFilter, after: Position, upto: Position, limit: int
) -> Found:
    """Return the matching events of some projects, up to the checkpoint of the projector that lists them."""
    checkpoint = await checkpoints.find(conn, "project_events")
    reached = min(upto, checkpoint.position if checkpoint else Position(0))
    if reached <= after:
        return Found((), after)
    positions = await projects.positions(conn, pick.projects, after=after, upto=reached, limit=limit)
    events = await find_at(conn, pick, positions)
    return Found(events, positions[-1] if len(positions) == limit else reached)


async def _from_timelines(
    conn: AsyncConnection, pick: EventFilter, after: Position, upto: Position, limit: int
) -> Found:
    """Return the matching events of the allocations' timelines, up to the checkpoint of their projector.

    The timelines are read after the checkpoint, so they are complete up to it.
    """
    checkpoint = await checkpoints.find(conn, "allocations")
    reached = min(upto, checkpoint.position if checkpoint else Position(0))
    if reached <= after:
        return Found((), after)
    listed: set[Position] = set()
    for correlation in pick.correlations:
        listed.update(await allocations.positions(conn, allocation_of(correlation), after=after, limit=limit))
    positions = sorted(position for position in listed if after < position <= reached)[:limit]
    events = await find_at(conn, pick, positions)
    return Found(events, positions[-1] if len(positions) == limit else reached)
