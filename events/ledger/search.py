"""Search for events by attributes of their envelopes: stream, type, project, actor, correlation id, id.

The ledger has one index by position and one by stream, and gets no others: each would cost every append. So streams are
read by their index, between the versions that each stream had at the reader's positions. For all other attributes
the ledger is scanned one window of positions at a time: each statement is short however rare the matching events are,
and the caller can track its progress. This module does not determine which events are final.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, BYTEA
from sqlalchemy.ext.asyncio import AsyncConnection

from events.catalog import name_of
from events.envelope import Recorded
from events.facts import Fact
from events.ledger.connection import ledger_connection
from events.ledger.project_keys import SECRET
from events.ledger.store import FIELDS, events_of
from events.ledger.tables import event
from events.ledger.versions import versions_at
from events.values import Position, ProjectId, StreamId

WINDOW: Final = 10_000
EVENT_COLUMNS: Final[Sequence[sa.ColumnElement[Any]]] = (
    *(event.c[name] for name in FIELDS),
    sa.literal_column(SECRET, BYTEA).label("secret"),
)
"""Columns that a query selects, in this order, so that `events.ledger.store.events_of` can convert its rows."""


class EventAttributes(NamedTuple):
    """The attributes by which an event can be selected."""

    stream: StreamId
    type: str
    project: ProjectId | None
    actor: str
    correlation_id: UUID
    id: UUID


def attributes_of(recorded: Recorded[Fact]) -> EventAttributes:
    cause = recorded.cause
    return EventAttributes(
        recorded.stream,
        name_of(recorded.fact),
        cause.project,
        cause.actor,
        cause.correlation_id,
        recorded.event_id,
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
    ids: frozenset[UUID] = frozenset()

    @property
    def everything(self) -> bool:
        return not any(self)

    def takes(self, traits: EventAttributes) -> bool:
        return all(not named or found in named for named, found in zip(self, traits, strict=True))

    def condition(self) -> sa.ColumnElement[bool]:
        columns = (
            event.c.stream_id,
            event.c.type,
            event.c.project,
            event.c.actor,
            event.c.correlation_id,
            event.c.event_id,
        )
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
        query, end = await _of_streams(conn, pick, after, upto, limit), upto
    else:
        end = min(upto, Position(after + WINDOW))
        query = _between(pick, after, end).order_by(event.c.position).limit(limit)
    events = tuple(events_of((await conn.execute(query)).all()))
    return Found(events, events[-1].position if len(events) == limit else end)


async def find_newest(
    conn: AsyncConnection, pick: EventFilter, *, after: Position, before: Position, limit: int
) -> Found:
    """Return the last matching events before a position and after another, newest first. A search may find no events
    and still end above `after`: `reached` is the lowest position that it has covered. The next search takes `reached`
    as `before`.
    """
    upto = Position(before - 1)
    if pick.streams:
        query, low = await _of_streams(conn, pick, after, upto, limit, descending=True), after
    else:
        low = max(after, Position(upto - WINDOW))
        query = _between(pick, low, upto).order_by(event.c.position.desc()).limit(limit)
    events = tuple(events_of((await conn.execute(query)).all()))
    return Found(events, events[-1].position if len(events) == limit else Position(low + 1))


def _between(pick: EventFilter, after: Position, upto: Position) -> sa.Select[Any]:
    where = event.c.position > after, event.c.position <= upto, pick.condition()
    return sa.select(*EVENT_COLUMNS).where(*where)


async def _of_streams(
    conn: AsyncConnection,
    pick: EventFilter,
    after: Position,
    upto: Position,
    limit: int,
    *,
    descending: bool = False,
) -> sa.Select[Any]:
    """Build the query for the events of streams between two positions, in order or, with `descending`, newest first.

    The cost of the query depends on the events that it returns, not on the other events of the streams.
    """
    ledger = await ledger_connection(conn)
    begun = await versions_at(ledger, pick.streams, after)
    ended = await versions_at(ledger, pick.streams, upto)
    names = (
        sa.column("stream_id", event.c.stream_id.type),
        sa.column("low", event.c.version.type),
        sa.column("high", event.c.version.type),
    )
    asked = sa.values(*names, name="asked").data([(each, low, ended[each]) for each, low in begun.items()])
    own = (
        event.c.stream_id == asked.c.stream_id,
        event.c.version > asked.c.low,
        event.c.version <= asked.c.high,
    )
    of_one = (
        sa.select(*EVENT_COLUMNS)
        .where(*own, pick._replace(streams=frozenset()).condition())
        .order_by(event.c.version.desc() if descending else event.c.version)
        .limit(limit)
        .lateral("of_one")
    )
    found = sa.select(*(of_one.c[name] for name in (*FIELDS, "secret"))).select_from(
        asked.join(of_one, sa.true())
    )
    return found.order_by(of_one.c.position.desc() if descending else of_one.c.position).limit(limit)


async def find_listed(
    conn: AsyncConnection, pick: EventFilter, positions: Sequence[Position], limit: int
) -> Found:
    """Return the first `limit` of those events at the given positions that match the filter, in the order of the
    positions, ascending or descending. `reached` is the last position that was compared. Raises `IndexError` if there
    are no positions.
    """
    descending = positions[0] > positions[-1]
    query = (
        sa.select(*EVENT_COLUMNS)
        .where(event.c.position == sa.any_(sa.bindparam("positions", positions, ARRAY(sa.BigInteger))))
        .where(pick.condition())
        .order_by(event.c.position.desc() if descending else event.c.position)
        .limit(limit)
    )
    events = tuple(events_of((await conn.execute(query)).all()))
    return Found(events, events[-1].position if len(events) == limit else positions[-1])
