"""The format of an export of the ledger: a file of lines that is compressed with Zstandard (RFC 8878). Each line is a
JSON array with its kind as the first item.

An export begins with `export` and ends with `end`. Between them are, for each head in the order of the numbers, its
line, then the idempotency keys that it covers, then the rows of the positions that it adds; then the rows that are not
sealed yet, in the order of positions; then the other tables. A reader must keep only the streams, the claims and the
parts in memory. Binary values are base64 (RFC 4648). `docs/audit.md` describes the format for other readers.
"""

from datetime import datetime
from typing import Final

import msgspec

FORMAT: Final = 1


class _Line(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Base class of the kinds of lines in an export of the ledger."""


class ExportLine(_Line, frozen=True, tag="export"):
    """The first line: the version of the format, and when the snapshot of the database was taken."""

    format: int
    exported_at: datetime


class HeadLine(_Line, frozen=True, tag="head"):
    """A signed head, and the leaves that it adds, 32 bytes each."""

    text: str
    leaves: bytes


class KeyLine(_Line, frozen=True, tag="key"):
    """An idempotency key of a command with events in the range of positions that the last `HeadLine` before it adds."""

    name: str
    digest: str


class SealedLine(_Line, frozen=True, tag="sealed"):
    """A row of `ledger.event` as PostgreSQL sends it, with a null leaf (`events.ledger.merkle`). Its stored leaf is
    not repeated, because it is equal to the one in the last `HeadLine` before it.
    """

    row: bytes


class EventLine(_Line, frozen=True, tag="event"):
    """A row of `ledger.event`, in the form of `SealedLine`, that is not sealed yet or has another leaf than the sealed
    one.
    """

    row: bytes
    leaf: bytes


class DeadLine(_Line, frozen=True, tag="dead"):
    """A row of `ledger.dead_position` as PostgreSQL sends it, with a null leaf, and its stored leaf."""

    row: bytes
    leaf: bytes


class PartLine(_Line, frozen=True, tag="part"):
    """A row of a part of the database that heads have a digest of, except idempotency keys."""

    part: str
    name: str
    digest: str


class StreamLine(_Line, frozen=True, tag="stream"):
    """A row of `ledger.head`: a stream and its last version."""

    stream: str
    version: int


class ClaimLine(_Line, frozen=True, tag="claim"):
    """A row of `ledger.claim`: the claimed thing and the stream that holds it."""

    kind: str
    value: str
    stream: str


class StrayKeyLine(_Line, frozen=True, tag="stray_key"):
    """An idempotency key that names a position without an event, or with a time that is more than a minute
    before this event."""

    name: str


class CheckpointLine(_Line, frozen=True, tag="checkpoint"):
    """The position up to which a follower has processed the ledger."""

    name: str
    position: int


class EndLine(_Line, frozen=True, tag="end"):
    """The last line: the last position that was assigned, and the number of lines before this one."""

    drawn: int
    lines: int


Line = (
    ExportLine
    | HeadLine
    | KeyLine
    | SealedLine
    | EventLine
    | DeadLine
    | PartLine
    | StreamLine
    | ClaimLine
    | StrayKeyLine
    | CheckpointLine
    | EndLine
)
ENCODER: Final = msgspec.json.Encoder()
DECODER: Final = msgspec.json.Decoder(Line)
