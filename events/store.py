"""Reading the ledger: rows back to typed facts in their envelopes.

What is read here by stream or by position is what a transaction may see; whether the log is final up to a
position is for `events.tail` to say.
"""

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

import psycopg

from events.catalog import decode
from events.envelope import Cause, Recorded
from events.facts import Fact
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
_CORRELATED: Final = (
    f"select {COLUMNS} from ledger.event where position > %s and position <= %s and correlation_id = %s"
    " order by position limit %s"
)
_END: Final = 2**63 - 1


async def read_stream(
    conn: psycopg.AsyncConnection, stream: StreamId, *, upto: Position | None = None
) -> tuple[Recorded[Fact], ...]:
    """All facts of a stream in its order, or those up to a position. Empty when there is no such stream."""
    return await _read(conn, _STREAM, [stream, _END if upto is None else upto])


async def read_positions(
    conn: psycopg.AsyncConnection, positions: Sequence[Position]
) -> tuple[Recorded[Fact], ...]:
    """The events at these positions, in order; positions that hold none are left out."""
    return await _read(conn, _POSITIONS, [list(positions)])


async def read_range(
    conn: psycopg.AsyncConnection,
    after: Position,
    upto: Position,
    *,
    correlation_id: UUID | None = None,
    limit: int,
) -> tuple[Recorded[Fact], ...]:
    """At most `limit` events after one position and up to another, or those of one correlation."""
    if correlation_id is None:
        return await _read(conn, _RANGE, [after, upto, limit])
    return await _read(conn, _CORRELATED, [after, upto, correlation_id, limit])


async def _read(
    conn: psycopg.AsyncConnection, query: str, parameters: list[object]
) -> tuple[Recorded[Fact], ...]:
    cursor = await conn.execute(query, parameters, prepare=True, binary=True)
    return tuple([recorded(row) for row in await cursor.fetchall()])


def recorded(row: tuple[Any, ...]) -> Recorded[Fact]:
    """One row of `COLUMNS`, typed. Raises `UnknownFact` for what a newer release wrote."""
    return Recorded(
        row[0],
        row[1],
        row[2],
        row[3],
        decode(row[4], row[5], row[15]),
        Cause(row[7], row[8], row[9], row[12], row[6], row[10], row[11]),
        row[13],
        row[14],
    )
