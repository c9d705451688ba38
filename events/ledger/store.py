"""Read the ledger: convert rows to typed facts in their envelopes.

Reads by stream or by position return what the transaction can see; `events.ledger.tail` determines whether the ledger
is final up to a position.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

import psycopg

from events.catalog import READERS, UnknownFact, UnreadableFact, decode
from events.envelope import Cause, Recorded
from events.facts import Fact, Unreadable
from events.ledger.errors import UnreadableEvent
from events.ledger.personal import PERSONAL_FIELDS, UnreadablePersonalData, key_of, opened_event
from events.ledger.project_keys import SECRET, cipher_of
from events.shapes import MISREAD
from events.values import Epoch, Position, ProjectId, StreamId


class _EventRow(NamedTuple):
    position: Position
    event_id: UUID
    stream_id: StreamId
    version: int
    type: str
    schema_version: int
    project: ProjectId | None
    actor: str
    reason: str
    correlation_id: UUID
    causation_id: UUID | None
    trace_context: str | None
    observed_at: datetime
    recorded_at: datetime
    epoch: Epoch
    data: str
    secret: bytes | None


FIELDS: Final = _EventRow._fields[:-1]
"""The columns of `ledger.event` that readers need."""
COLUMNS: Final = ", ".join((*FIELDS, f"{SECRET} as secret"))
_STREAM: Final = (
    f"select {COLUMNS} from ledger.event where stream_id = %s and position <= %s order by version"
)
_FIRST: Final = f"select {COLUMNS} from ledger.event where stream_id = %s and version = 1"
_POSITIONS: Final = f"select {COLUMNS} from ledger.event where position = any(%s) order by position"
_RANGE: Final = (
    f"select {COLUMNS} from ledger.event where position > %s and position <= %s order by position limit %s"
)
_END: Final = 2**63 - 1
Events = TypeVar("Events", bound=Sequence[Recorded[Fact]])


async def read_stream(
    conn: psycopg.AsyncConnection, stream: StreamId, *, upto: Position | None = None
) -> tuple[Recorded[Fact], ...]:
    """Return all facts of a stream in order, or those up to a position; an empty result if the stream does not exist.

    Raises `UnreadableEvent`: the state of a stream is folded from its facts, and a fold must not skip one.
    """
    return refuse_unreadable(await _read(conn, _STREAM, [stream, _END if upto is None else upto]))


async def read_first(conn: psycopg.AsyncConnection, stream: StreamId) -> Recorded[Fact]:
    """Return the first event of a stream that exists. Raises `UnreadableEvent`."""
    [first] = refuse_unreadable(await _read(conn, _FIRST, [stream]))
    return first


async def read_positions(
    conn: psycopg.AsyncConnection, positions: Sequence[Position]
) -> tuple[Recorded[Fact], ...]:
    """Return the events at these positions, in order; positions without an event are omitted."""
    return await _read(conn, _POSITIONS, [list(positions)])


async def read_range(
    conn: psycopg.AsyncConnection, after: Position, upto: Position, *, limit: int
) -> tuple[Recorded[Fact], ...]:
    """Return at most `limit` events after one position and up to another."""
    return await _read(conn, _RANGE, [after, upto, limit])


async def send_range_query(conn: psycopg.AsyncConnection, after: Position, limit: int) -> psycopg.AsyncCursor:
    """Send the query for at most `limit` events after a position, and return its cursor without reading the result.

    In a pipeline, call this before the results of earlier queries are read.
    """
    return await _send(conn, _RANGE, [after, _END, limit])


async def fetch_events(cursor: psycopg.AsyncCursor) -> tuple[Recorded[Fact], ...]:
    """Return the events that an executed query found."""
    return tuple(events_of(await cursor.fetchall()))


async def _send(conn: psycopg.AsyncConnection, query: str, parameters: list[object]) -> psycopg.AsyncCursor:
    return await conn.execute(query, parameters, prepare=True, binary=True)


async def _read(
    conn: psycopg.AsyncConnection, query: str, parameters: list[object]
) -> tuple[Recorded[Fact], ...]:
    return await fetch_events(await _send(conn, query, parameters))


def refuse_unreadable(events: Events) -> Events:
    """Return the events if all of them are readable. Raises `UnreadableEvent` for the first that is not."""
    for each in events:
        if isinstance(each.fact, Unreadable):
            raise UnreadableEvent(each.position, each.fact.error)
    return events


def events_of(rows: Sequence[Sequence[Any]]) -> list[Recorded[Fact]]:
    """Convert rows with the columns `COLUMNS` to events. A fact that this release cannot decode becomes `Unreadable`.

    If there is such a fact, all rows are converted again, one after the other, which takes twice as long.
    """
    try:
        return [
            Recorded(
                position, event_id, stream, version, READERS[type_, schema_version](
                    data if type_ not in PERSONAL_FIELDS else opened(type_, stream, version, data, secret)
                ),
                Cause(actor, reason, correlation_id, observed_at, project, causation_id, trace_context),
                recorded_at, epoch,
            )
            for position, event_id, stream, version, type_, schema_version, project, actor, reason, correlation_id,
            causation_id, trace_context, observed_at, recorded_at, epoch, data, secret in rows
        ]  # fmt: skip
    except MISREAD:
        return [_event_of(row) for row in rows]


def _event_of(row: Sequence[Any]) -> Recorded[Fact]:
    """Convert one row as `events_of` does."""
    event = _EventRow._make(row)
    return Recorded(
        position=event.position,
        event_id=event.event_id,
        stream=event.stream_id,
        version=event.version,
        fact=_fact_of(event),
        cause=Cause(
            actor=event.actor,
            reason=event.reason,
            correlation_id=event.correlation_id,
            observed_at=event.observed_at,
            project=event.project,
            causation_id=event.causation_id,
            trace_context=event.trace_context,
        ),
        recorded_at=event.recorded_at,
        epoch=event.epoch,
    )


def opened(type_: str, stream: StreamId, version: int, data: str, secret: bytes | None) -> str:
    """Return the JSON of an event with its personal fields, given the value of `SECRET`. Raises
    `UnreadablePersonalData`.
    """
    if type_ not in PERSONAL_FIELDS or key_of(data) is None:
        return data
    return opened_event((type_, stream, str(version)), data, cipher_of(data, secret))


def _fact_of(event: _EventRow) -> Fact:
    """Return the fact of a stored row, or `Unreadable` if this release cannot read it."""
    try:
        data = opened(event.type, event.stream_id, event.version, event.data, event.secret)
        return decode(event.type, event.schema_version, data)
    except (UnknownFact, UnreadableFact, UnreadablePersonalData) as error:
        return Unreadable(event.type, event.schema_version, event.data, str(error))
