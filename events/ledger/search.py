"""Search for events by attributes of their envelopes: stream, type, project, actor, correlation id.

The ledger has one index by position and one by stream, and gets no others: each would cost every append. So streams are
read by their index, beginning at the version that each stream had at the reader's position. For all other attributes
the ledger is scanned one window of positions at a time: each statement is short however rare the matching events are,
and the caller can track its progress. This module does not determine which events are final.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import BYTEA
from sqlalchemy.ext.asyncio import AsyncConnection

from events.catalog import name_of
from events.envelope import Recorded
from events.facts import Fact
from events.ledger.connection import ledger_connection
from events.ledger.project_keys import SECRET
from events.ledger.store import FIELDS, recorded
from events.ledger.tables import event
from events.ledger.versions import versions_at
from events.values import Position, ProjectId, StreamId

WINDOW: Final = 10_000
EVENT_COLUMNS: Final[Sequence[sa.ColumnElement[Any]]] = (
    *(event.c[name] for name in FIELDS),
    sa.literal_column(SECRET, BYTEA).label("secret"),
)
"""The columns of a row that `recorded` reads."""


class EventAttributes(NamedTuple):
    """The attributes by which an event can be selected."""

    stream: StreamId
    type: str
    project: ProjectId | None
    actor: str
    correlation_id: UUID


def attributes_of(recorded: Recorded[Fact]) -> EventAttributes:
    cause = recorded.cause
    return EventAttributes(
        recorded.stream, name_of(recorded.fact), cause.project, cause.actor, cause.correlation_id
    )


class EventFilter(NamedTuple):
    """A filter for events: an event matches if each attribute has one of the values given for it; an empty set of
    values matches all.
    """

    streams: frozenset[StreamId] = frozenset()
    types: frozenset[str] = frozenset()
    projects: frozenset[ProjectId] = frozenset()
    actors: frozenset[str] = frozenset()
    correlations: frozenset[UUID] = frozenset()

    @property
    def everything(self) -> bool:
        return not any(self)

    def takes(self, traits: EventAttributes) -> bool:
        return all(not named or found in named for named, found in zip(self, traits, strict=True))

    def condition(self) -> sa.ColumnElement[bool]:
        columns = (event.c.stream_id, event.c.type, event.c.project, event.c.actor, event.c.correlation_id)
        named = zip(columns, self, strict=True)
        return sa.and_(sa.true(), *(column.in_(sorted(values)) for column, values in named if values))


class Found(NamedTuple):
    """Matching events in order, and the position up to which there are no other matches: the search continues after
    it.
    """

    events: tuple[Recorded[Fact], ...]
    reached: Position


async def find(
    conn: AsyncConnection, pick: EventFilter, *, after: Position, upto: Position, limit: int
) -> Found:
    """Return the next matching events after one position and up to another. A search may find no events and still end
    before `upto`; it continues after the position `reached`.
    """
    if pick.streams:
        begun = await versions_at(await ledger_connection(conn), pick.streams, after)
        query, end = _of_streams(begun, pick, upto, limit), upto
    else:
        end = min(upto, Position(after + WINDOW))
        query = _between(pick, after, end).limit(limit)
    events = _typed((await conn.execute(query)).all())
    return Found(events, events[-1].position if len(events) == limit else end)


async def find_newest(
    conn: AsyncConnection, pick: EventFilter, *, after: Position, before: Position, limit: int
) -> Found:
    """Return the last matching events before a position and after another, newest first. A search may find no events
    and still end above `after`: `reached` is the lowest position that it has covered. The next search takes `reached`
    as `before`.
    """
    low = max(after, Position(before - 1 - WINDOW))
    where = event.c.position > low, event.c.position < before, pick.condition()
    query = sa.select(*EVENT_COLUMNS).where(*where).order_by(event.c.position.desc()).limit(limit)
    events = _typed((await conn.execute(query)).all())
    return Found(events, events[-1].position if len(events) == limit else Position(low + 1))


def _between(pick: EventFilter, after: Position, upto: Position) -> sa.Select[Any]:
    where = event.c.position > after, event.c.position <= upto, pick.condition()
    return sa.select(*EVENT_COLUMNS).where(*where).order_by(event.c.position)


def _of_streams(
    begun: Mapping[StreamId, int], pick: EventFilter, upto: Position, limit: int
) -> sa.Select[Any]:
    """Build the query for events after the given version of each stream.

    The cost of a query depends on the events that it returns, not on the length of the stream before them.
    """
    names = sa.column("stream_id", event.c.stream_id.type), sa.column("version", event.c.version.type)
    asked = sa.values(*names, name="asked").data(list(begun.items()))
    own = event.c.stream_id == asked.c.stream_id, event.c.version > asked.c.version
    news = (
        sa.select(*EVENT_COLUMNS)
        .where(*own, event.c.position <= upto, pick._replace(streams=frozenset()).condition())
        .order_by(event.c.version)
        .limit(limit)
        .lateral("news")
    )
    found = sa.select(*(news.c[name] for name in (*FIELDS, "secret"))).select_from(
        asked.join(news, sa.true())
    )
    return found.order_by(news.c.position).limit(limit)


async def find_at(
    conn: AsyncConnection, pick: EventFilter, positions: Sequence[Position]
) -> tuple[Recorded[Fact], ...]:
    """Return those events at the given positions that match the filter, in order."""
    query = sa.select(*EVENT_COLUMNS).where(event.c.position.in_(positions), pick.condition())
    return _typed((await conn.execute(query.order_by(event.c.position))).all())


def _typed(rows: Sequence[sa.Row[Any]]) -> tuple[Recorded[Fact], ...]:
    return tuple([recorded(tuple(row)) for row in rows])
