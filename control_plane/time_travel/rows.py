"""Past rows of read models, computed from a stream up to a position by the same updates that maintain the live rows.

A stream grows without limit, but its row follows from few of its facts. Every fact of a type assigns the same columns,
so the last fact of each type is enough; the first fact of the stream creates the row. The database selects those few
facts, for a page of streams in one statement. It finds the version that a stream had at the position by binary search,
because versions and positions ascend together. To select the facts, it reads only the types of the facts up to that
version. docs/decisions/0012 has the costs.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import psycopg

from events.envelope import Recorded
from events.facts import Fact
from events.ledger.store import COLUMNS, events_of, refuse_unreadable
from events.ledger.versions import VERSION_AT
from events.values import Position, StreamId
from read_models.rows import Patched, folded

Row = dict[str, Any]

_DECISIVE: Final = f"""
select found.* from unnest(%(streams)s::text[]) as asked(stream_id)
 cross join lateral ({VERSION_AT}) as had
 cross join lateral (
    select max(e.version) as version from ledger.event e
     where e.stream_id = asked.stream_id and e.version <= had.version group by e.type
    union select 1 where had.version > 0) as decisive
 cross join lateral (select {COLUMNS} from ledger.event e
                      where e.stream_id = asked.stream_id and e.version = decisive.version offset 0) as found
 order by found.stream_id, found.version
"""  # noqa: S608, put together from constants
_SINCE: Final = f"""
select {COLUMNS} from ledger.event
 where stream_id = %(stream)s and position <= %(to)s
   and version > (select had.version from (select %(stream)s::text) as asked(stream_id)
                   cross join lateral ({VERSION_AT}) as had)
 order by version limit %(limit)s
"""  # noqa: S608, put together from constants
_WHOLE: Final = f"""
select {COLUMNS} from ledger.event where stream_id = any(%(streams)s) and position <= %(upto)s
 order by stream_id, version
"""  # noqa: S608, put together from constants
_FIRST: Final = f"""
select {COLUMNS} from ledger.event where stream_id = any(%(streams)s) and version = 1
"""  # noqa: S608, put together from constants


async def rows_at(
    conn: psycopg.AsyncConnection, model: Patched, streams: Sequence[StreamId], upto: Position
) -> dict[StreamId, Row]:
    """Return the read model row of each stream at a position; streams that had not begun are left out."""
    found = await _read(conn, _DECISIVE, {"streams": list(streams), "upto": upto})
    return {stream: made for stream, facts in _by_stream(found) if (made := row_of(model, facts)) is not None}


def row_of(model: Patched, history: Iterable[Recorded[Fact]]) -> Row | None:
    """Return the read model row computed from these facts of one stream; None without facts."""
    return folded(model.table, model.patches((each.version, each.fact) for each in history))


def advanced(model: Patched, row: Row | None, fact: Recorded[Fact]) -> Row | None:
    """Return a read model row after one more fact of its stream."""
    patches = model.patches([(fact.version, fact.fact)])
    if row is None:
        return folded(model.table, patches)
    return row | {name: value for patch in patches for name, value in patch.columns.items()}


async def since(
    conn: psycopg.AsyncConnection, stream: StreamId, after: Position, to: Position, limit: int
) -> list[Recorded[Fact]]:
    """Return up to `limit` facts of a stream after one position and up to another, oldest first."""
    return await _read(conn, _SINCE, {"stream": stream, "upto": after, "to": to, "limit": limit})


async def streams_up_to(
    conn: psycopg.AsyncConnection, streams: Sequence[StreamId], upto: Position
) -> dict[StreamId, list[Recorded[Fact]]]:
    """Return all facts of streams up to a position; streams that had not begun are left out."""
    return dict(_by_stream(await _read(conn, _WHOLE, {"streams": list(streams), "upto": upto})))


async def firsts(conn: psycopg.AsyncConnection, streams: Sequence[StreamId]) -> list[Recorded[Fact]]:
    """Return the first fact of each of these streams."""
    return await _read(conn, _FIRST, {"streams": list(streams)})


async def _read(
    conn: psycopg.AsyncConnection, query: str, parameters: dict[str, object]
) -> list[Recorded[Fact]]:
    cursor = await conn.execute(query, parameters, prepare=True, binary=True)
    return refuse_unreadable(events_of(await cursor.fetchall()))


def _by_stream(events: Iterable[Recorded[Fact]]) -> Iterable[tuple[StreamId, list[Recorded[Fact]]]]:
    grouped: dict[StreamId, list[Recorded[Fact]]] = {}
    for each in events:
        grouped.setdefault(each.stream, []).append(each)
    return grouped.items()
