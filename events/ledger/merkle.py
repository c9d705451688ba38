"""Leaves of the ledger's Merkle tree, computed outside the database to verify the ledger offline (LED-7).

A leaf is sha256(0x00 || encoding) (RFC 6962 section 2.1). The encoding is one byte of version (1), one byte of kind (1
an event, 2 a dead position), then the row with its leaf still null, as PostgreSQL sends a composite value: the number
of columns in 4 bytes, and for each column in order the type OID in 4 bytes, the length in 4 bytes (-1 for null) and
that many bytes. Integers are big-endian two's complement, a uuid is its 16 bytes, a text its UTF-8, a time the
microseconds since 2000-01-01 UTC. Every field includes its length, so that two different rows never have the same
encoding.

`ledger.append` computes the same bytes in the database. The encoding of a version is permanent: a different encoding
gets another version.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from struct import pack
from typing import Final, NamedTuple
from uuid import UUID

VERSION: Final = b"\x01"
EVENT: Final = b"\x01"
DEAD: Final = b"\x02"
_POSTGRES_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_BYTEA: Final = 17


class EventRow(NamedTuple):
    """A row of `ledger.event` as stored, without its leaf, in the order of the columns."""

    position: int
    event_id: UUID
    stream_id: str
    version: int
    type: str
    schema_version: int
    project: str | None
    actor: str
    reason: str
    correlation_id: UUID
    causation_id: UUID | None
    trace_context: str | None
    observed_at: datetime
    recorded_at: datetime
    epoch: int
    data: str


class DeadRow(NamedTuple):
    """A row of `ledger.dead_position` without its leaf."""

    position: int
    noted_at: datetime
    seen_by: str
    epoch: int


def leaf_of(row: EventRow | DeadRow) -> bytes:
    """Return the Merkle leaf of a row of the ledger: the 32 bytes of its column `leaf`."""
    return sha256(b"\x00" + encoding_of(row)).digest()


def encoding_of(row: EventRow | DeadRow) -> bytes:
    """Return the bytes of a row that are hashed into its Merkle leaf, before the prefix of RFC 6962 is added."""
    kind, fields = (EVENT, _event_fields(row)) if isinstance(row, EventRow) else (DEAD, _dead_fields(row))
    fields = (*fields, _field(_BYTEA, None))
    return VERSION + kind + pack(">i", len(fields)) + b"".join(fields)


def _event_fields(row: EventRow) -> Sequence[bytes]:
    return (
        _bigint(row.position), _uuid(row.event_id), _text(row.stream_id), _bigint(row.version), _text(row.type),
        _smallint(row.schema_version), _text(row.project), _text(row.actor), _text(row.reason),
        _uuid(row.correlation_id), _uuid(row.causation_id), _text(row.trace_context), _time(row.observed_at),
        _time(row.recorded_at), _integer(row.epoch), _text(row.data),
    )  # fmt: skip


def _dead_fields(row: DeadRow) -> Sequence[bytes]:
    return _bigint(row.position), _time(row.noted_at), _text(row.seen_by), _integer(row.epoch)


def _field(oid: int, content: bytes | None) -> bytes:
    return pack(">Ii", oid, -1) if content is None else pack(">Ii", oid, len(content)) + content


# The OIDs of PostgreSQL's built-in types are constants of its catalog (pg_type.dat), equal on every server.
def _bigint(value: int) -> bytes:
    return _field(20, pack(">q", value))


def _smallint(value: int) -> bytes:
    return _field(21, pack(">h", value))


def _integer(value: int) -> bytes:
    return _field(23, pack(">i", value))


def _text(value: str | None) -> bytes:
    return _field(25, None if value is None else value.encode())


def _time(value: datetime) -> bytes:
    return _field(1184, pack(">q", (value - _POSTGRES_EPOCH) // _MICROSECOND))


def _uuid(value: UUID | None) -> bytes:
    return _field(2950, None if value is None else value.bytes)
