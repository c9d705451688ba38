"""Events picked by what stands around them: stream, type, project, actor, correlation.

The log has an index by position and one by stream, and gets no others: each would cost every append. So streams are
read by theirs, and for all else the log is looked through a window at a time: a statement is short however rare the
events are that it looks for, and its caller can tell how far it has come. Nothing here knows what is final.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from events.catalog import name_of
from events.envelope import Recorded
from events.facts import Fact
from events.store import COLUMNS, recorded
from events.tables import event
from events.values import Position, ProjectId, StreamId

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
    query = sa.select(*_COLUMNS).where(event.c.position > after, pick.condition()).limit(limit)
    if pick.streams:
        # By an expression, not the column: the planner would rather walk the whole log in its order until enough
        # is found than sort the few events that the streams' index gives.
        query, end = query.order_by(event.c.position + 0), upto
    else:
        query, end = query.order_by(event.c.position), min(upto, Position(after + WINDOW))
    rows = await conn.execute(query.where(event.c.position <= end))
    events = _typed(rows.all())
    return Found(events, events[-1].position if len(events) == limit else end)


async def find_at(
    conn: AsyncConnection, pick: Pick, positions: Sequence[Position]
) -> tuple[Recorded[Fact], ...]:
    """Those of the events at these positions that are picked, in order."""
    query = sa.select(*_COLUMNS).where(event.c.position.in_(positions), pick.condition())
    return _typed((await conn.execute(query.order_by(event.c.position))).all())


def _typed(rows: Sequence[sa.Row[Any]]) -> tuple[Recorded[Fact], ...]:
    return tuple([recorded(tuple(row)) for row in rows])
