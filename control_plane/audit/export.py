"""Write an export of the ledger for an auditor, from one snapshot of the database.

The snapshot shows every transaction as a whole, so the versions of streams and the claims agree with the events in it.
"""

from collections.abc import AsyncIterator
from typing import Final, LiteralString, NamedTuple

import psycopg
from zstandard import ZstdCompressor

from control_plane.audit.heads import Part
from control_plane.audit.lines import (
    ENCODER,
    FORMAT,
    CheckpointLine,
    ClaimLine,
    DeadLine,
    EndLine,
    EventLine,
    ExportLine,
    HeadLine,
    KeyLine,
    Line,
    PartLine,
    SealedLine,
    StrayKeyLine,
    StreamLine,
)
from control_plane.audit.parts import part_rows
from control_plane.database import LONG_PAUSES
from events.ledger.connection import fetch_rows, fetch_value
from events.ledger.tables import dead_position, event
from events.ledger.tree import HASH_BYTES

_LEVEL: Final = 1
"""Level of compression. The default makes exports a sixth smaller, and takes a third more time to decompress."""
_CHUNK_BYTES: Final = 1 << 18
_ROWS: Final = 2000
_BEGIN: Final = -(2**63)
_END: Final = 2**63 - 1


def _rows_of(table: LiteralString, columns: LiteralString, kind: LiteralString) -> LiteralString:
    return f"""
        select position, {kind} as is_event, leaf,
               record_send((select h from (select {columns}, null::bytea as leaf) h)) as row
          from ledger.{table} where position > %(after)s and position <= %(upto)s
    """


_COLUMNS: Final = {
    table: ", ".join(column.name for column in table.columns if column.name != "leaf")
    for table in (event, dead_position)
}
_RANGE: Final = f"""
    select * from (
      ({_rows_of("event", _COLUMNS[event], "true")} order by position limit {_ROWS + 1})
      union all
      ({_rows_of("dead_position", _COLUMNS[dead_position], "false")} order by position limit {_ROWS + 1})
    ) found order by position, is_event limit {_ROWS + 1}
"""
_HEADS: Final = (
    "select number, size, signed, leaves from ledger.tree_head where number > %s order by number limit 100"
)
_STREAMS: Final = "select stream_id as stream, version from ledger.head order by stream_id"
_CLAIMS: Final = "select kind, value, stream_id as stream from ledger.claim order by kind, value"
_CHECKPOINTS: Final = "select name, position from read.checkpoint order by name"
_STRAY_KEYS: Final = """
select k.principal || ' ' || k.route || ' ' || k.key as name
  from ledger.command_key k left join ledger.event e on e.position = k.last_position
 where k.last_position is not null
   and (e.position is null or k.taken_at not between e.recorded_at - interval '1 minute' and e.recorded_at)
 order by 1
"""


class _Head(NamedTuple):
    number: int
    size: int
    signed: str
    leaves: bytes


class _Row(NamedTuple):
    position: int
    is_event: bool
    leaf: bytes
    row: bytes


async def compressed_export(conn: psycopg.AsyncConnection) -> AsyncIterator[bytes]:
    """Yield the export in pieces. `conn` is in a transaction with isolation level repeatable read, which has read
    nothing yet.
    """
    frame = ZstdCompressor(_LEVEL, write_checksum=True).compressobj()
    piece, lines = bytearray(), 0
    async for line in _lines(conn):
        piece += ENCODER.encode(line) + b"\n"
        lines += 1
        if len(piece) >= _CHUNK_BYTES:
            yield frame.compress(piece)
            piece.clear()
    drawn = await fetch_value(conn, "select ledger.drawn()")
    piece += ENCODER.encode(EndLine(drawn, lines)) + b"\n"
    yield frame.compress(piece) + frame.flush()


async def _lines(conn: psycopg.AsyncConnection) -> AsyncIterator[Line]:
    await conn.execute(LONG_PAUSES)
    yield ExportLine(FORMAT, await fetch_value(conn, "select clock_timestamp()"))
    async for line in _history(conn):
        yield line
    async for line in _tables(conn):
        yield line


async def _history(conn: psycopg.AsyncConnection) -> AsyncIterator[Line]:
    """Yield the line of each signed head with the lines of the idempotency keys and rows that it covers, and then the
    lines of the rows that are not sealed.
    """
    number, size, after = _BEGIN, 0, _BEGIN
    while heads := await fetch_rows(conn, _Head, _HEADS, [number]):
        for head in heads:
            yield HeadLine(head.signed, head.leaves)
            for key in await part_rows(conn, Part.KEYS, size, head.size):
                yield KeyLine(key.name, key.digest)
            async for row in _rows(conn, after, head.size):
                yield _line_of(row, size, head.leaves)
            number, size, after = head.number, head.size, max(after, head.size)
    async for row in _rows(conn, after, _END):
        yield _line_of(row, size, b"")


async def _tables(conn: psycopg.AsyncConnection) -> AsyncIterator[Line]:
    for part in Part:
        if part is not Part.KEYS:
            for found in await part_rows(conn, part):
                yield PartLine(part, found.name, found.digest)
    for stream in await fetch_rows(conn, StreamLine, _STREAMS):
        yield stream
    for claim in await fetch_rows(conn, ClaimLine, _CLAIMS):
        yield claim
    for stray in await fetch_rows(conn, StrayKeyLine, _STRAY_KEYS):
        yield stray
    for checkpoint in await fetch_rows(conn, CheckpointLine, _CHECKPOINTS):
        yield checkpoint


def _line_of(row: _Row, begin: int, leaves: bytes) -> Line:
    """Return the export line of a row of the ledger. `leaves` are the leaves of the head that covers the row, which
    begin after position `begin`; empty for a row that is not sealed.
    """
    at = (row.position - begin - 1) * HASH_BYTES
    if row.is_event and at >= 0 and leaves[at : at + HASH_BYTES] == row.leaf:
        return SealedLine(row.row)
    return (EventLine if row.is_event else DeadLine)(row.row, row.leaf)


async def _rows(conn: psycopg.AsyncConnection, after: int, upto: int) -> AsyncIterator[_Row]:
    """Yield the rows of a range of positions, events and dead positions, in the order of positions."""
    while True:
        found = await fetch_rows(conn, _Row, _RANGE, {"after": after, "upto": upto})
        # The last row of a full page may have a twin at its position: leave both to the next page.
        is_last = len(found) <= _ROWS
        page = found if is_last else [row for row in found if row.position < found[-1].position]
        for row in page:
            yield row
        if is_last:
            return
        after = page[-1].position
