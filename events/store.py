"""Reading the ledger: rows back to typed facts in their envelopes.

What is read here by stream or by position is what a transaction may see; whether the log is final up to a
position is for `events.tail` to say.
"""

from collections.abc import Sequence
from typing import Any, Final, TypeVar

import psycopg

from events.catalog import UnknownFact, UnreadableFact, decode
from events.envelope import Cause, Recorded
from events.errors import UnreadableEvent
from events.facts import Fact, Unreadable
from events.values import Position, StreamId

COLUMNS: Final = (
    "position, event_id, stream_id, version, type, schema_version, project, actor, why, correlation_id,"
    " causation_id, trace_context, observed_at, recorded_at, epoch, data"
)
_STREAM: Final = (
    f"select {COLUMNS} from ledger.event where stream_id = %s and position <= %s order by version"
)
_POSITIONS: Final = f"select {COLUMNS} from ledger.event where position = any(%s) order by position"
_RANGE: Final = (
    f"select {COLUMNS} from ledger.event where position > %s and position <= %s order by position limit %s"
)
_END: Final = 2**63 - 1
Events = TypeVar("Events", bound=Sequence[Recorded[Fact]])


async def read_stream(
    conn: psycopg.AsyncConnection, stream: StreamId, *, upto: Position | None = None
) -> tuple[Recorded[Fact], ...]:
    """All facts of a stream in its order, or those up to a position. Empty when there is no such stream.

    Raises `UnreadableEvent`: what a stream says is folded, and a fold must not pass over a fact.
    """
    return refuse_unreadable(await _read(conn, _STREAM, [stream, _END if upto is None else upto]))


async def read_positions(
    conn: psycopg.AsyncConnection, positions: Sequence[Position]
) -> tuple[Recorded[Fact], ...]:
    """The events at these positions, in order; positions that hold none are left out."""
    return await _read(conn, _POSITIONS, [list(positions)])


async def read_range(
    conn: psycopg.AsyncConnection, after: Position, upto: Position, *, limit: int
) -> tuple[Recorded[Fact], ...]:
    """At most `limit` events after one position and up to another."""
    return await _read(conn, _RANGE, [after, upto, limit])


async def ask_range(conn: psycopg.AsyncConnection, after: Position, limit: int) -> psycopg.AsyncCursor:
    """Ask for at most `limit` events after a position; in a pipeline, before it is known what else was asked."""
    return await _ask(conn, _RANGE, [after, _END, limit])


async def answered(cursor: psycopg.AsyncCursor) -> tuple[Recorded[Fact], ...]:
    """The events that were asked for."""
    return tuple([recorded(row) for row in await cursor.fetchall()])


async def _ask(conn: psycopg.AsyncConnection, query: str, parameters: list[object]) -> psycopg.AsyncCursor:
    return await conn.execute(query, parameters, prepare=True, binary=True)


async def _read(
    conn: psycopg.AsyncConnection, query: str, parameters: list[object]
) -> tuple[Recorded[Fact], ...]:
    return await answered(await _ask(conn, query, parameters))


def refuse_unreadable(events: Events) -> Events:
    """The events, all of them readable. Raises `UnreadableEvent` for the first that is not."""
    for each in events:
        if isinstance(each.fact, Unreadable):
            raise UnreadableEvent(each.position, each.fact.error)
    return events


def recorded(row: tuple[Any, ...]) -> Recorded[Fact]:
    """One row of `COLUMNS`, typed; its fact is `Unreadable` where this release cannot read it."""
    return Recorded(
        row[0],
        row[1],
        row[2],
        row[3],
        fact_of(row[4], row[5], row[15]),
        Cause(row[7], row[8], row[9], row[12], row[6], row[10], row[11]),
        row[13],
        row[14],
    )


def fact_of(type_: str, schema_version: int, data: str) -> Fact:
    """The fact that is stored so, or `Unreadable`."""
    try:
        return decode(type_, schema_version, data)
    except (UnknownFact, UnreadableFact) as error:
        return Unreadable(type_, schema_version, data, str(error))
