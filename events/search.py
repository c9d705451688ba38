"""Events picked by what stands around them: stream, type, project, actor, correlation.

The log has an index by position and one by stream, and gets no others: each would cost every append. So streams are
read by theirs, from the version on that each had at the place where its reader is; for all else the log is looked
through a window at a time: a statement is short however rare the events are that it looks for, and its caller can
tell how far it has come. Nothing here knows what is final.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from events.catalog import name_of
from events.connection import ledger_connection
from events.envelope import Recorded
from events.facts import Fact
from events.store import COLUMNS, recorded
from events.tables import event
from events.values import Position, ProjectId, StreamId
from events.versions import versions_at

WINDOW: Final = 10_000
_COLUMNS: Final = tuple(event.c[name.strip()] for name in COLUMNS.split(","))


class Traits(NamedTuple):
    """What an event can be picked by."""

    stream: StreamId
    type: str
    project: ProjectId | None
    actor: str
    correlation_id: UUID


def traits_of(recorded: Recorded[Fact]) -> Traits:
    cause = recorded.cause
    return Traits(recorded.stream, name_of(recorded.fact), cause.project, cause.actor, cause.correlation_id)


class Pick(NamedTuple):
    """What to look for: of each trait one of those named, and any where none is named."""

    streams: frozenset[StreamId] = frozenset()
    types: frozenset[str] = frozenset()
    projects: frozenset[ProjectId] = frozenset()
    actors: frozenset[str] = frozenset()
    correlations: frozenset[UUID] = frozenset()

    @property
    def everything(self) -> bool:
        return not any(self)

    def takes(self, traits: Traits) -> bool:
        return all(not named or found in named for named, found in zip(self, traits, strict=True))

    def condition(self) -> sa.ColumnElement[bool]:
        columns = (event.c.stream_id, event.c.type, event.c.project, event.c.actor, event.c.correlation_id)
        named = zip(columns, self, strict=True)
        return sa.and_(sa.true(), *(column.in_(sorted(values)) for column, values in named if values))


class Found(NamedTuple):
    """Events in order, and the position up to which there are no others of their kind: where to go on."""

    events: tuple[Recorded[Fact], ...]
    reached: Position


async def find(conn: AsyncConnection, pick: Pick, *, after: Position, upto: Position, limit: int) -> Found:
    """The next events of a pick behind one position and up to another; perhaps none yet, and `reached` below `upto`."""
    if pick.streams:
        begun = await versions_at(await ledger_connection(conn), pick.streams, after)
        query, end = _of_streams(begun, pick, upto, limit), upto
    else:
        end = min(upto, Position(after + WINDOW))
        query = _between(pick, after, end).limit(limit)
    events = _typed((await conn.execute(query)).all())
    return Found(events, events[-1].position if len(events) == limit else end)


def _between(pick: Pick, after: Position, upto: Position) -> sa.Select[Any]:
    where = event.c.position > after, event.c.position <= upto, pick.condition()
    return sa.select(*_COLUMNS).where(*where).order_by(event.c.position)


def _of_streams(begun: Mapping[StreamId, int], pick: Pick, upto: Position, limit: int) -> sa.Select[Any]:
    """Behind a version of each stream: a page costs what it holds, however much of the stream lies before it."""
    names = sa.column("stream_id", event.c.stream_id.type), sa.column("version", event.c.version.type)
    asked = sa.values(*names, name="asked").data(list(begun.items()))
    own = event.c.stream_id == asked.c.stream_id, event.c.version > asked.c.version
    news = (
        sa.select(*_COLUMNS)
        .where(*own, event.c.position <= upto, pick._replace(streams=frozenset()).condition())
        .order_by(event.c.version)
        .limit(limit)
        .lateral("news")
    )
    found = sa.select(*(news.c[column.name] for column in _COLUMNS)).select_from(asked.join(news, sa.true()))
    return found.order_by(news.c.position).limit(limit)


async def find_at(
    conn: AsyncConnection, pick: Pick, positions: Sequence[Position]
) -> tuple[Recorded[Fact], ...]:
    """Those of the events at these positions that are picked, in order."""
    query = sa.select(*_COLUMNS).where(event.c.position.in_(positions), pick.condition())
    return _typed((await conn.execute(query.order_by(event.c.position))).all())


def _typed(rows: Sequence[sa.Row[Any]]) -> tuple[Recorded[Fact], ...]:
    return tuple([recorded(tuple(row)) for row in rows])
