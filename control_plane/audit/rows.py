"""Read rows of the ledger from the bytes that PostgreSQL sends for them (`events.ledger.merkle`), and hash them."""

from hashlib import sha256
from struct import Struct, error, pack
from typing import Final, NamedTuple

from events.ledger.merkle import DEAD, EVENT, VERSION

_INT8, _BYTEA, _INT2, _INT4, _TEXT, _TIMESTAMPTZ, _UUID = 20, 17, 21, 23, 25, 1184, 2950
# An event in as few pieces as its texts and nullable columns permit: a text begins after each. `x` skips a byte. The
# type and the length of a column of fixed length are read as one number of 8 bytes (`Q`).
_TO_STREAM: Final = Struct(">iQqQ16xIi")
_TO_TYPE: Final = Struct(">QqIi")
_TO_PROJECT: Final = Struct(">QhIi")
_TO_TEXT: Final = Struct(">Ii")
_TO_CAUSATION: Final = Struct(">Q16xIi")
_TO_DATA: Final = Struct(">QqQqQiIi")
_INT8_8, _INT2_2, _INT4_4 = _INT8 << 32 | 8, _INT2 << 32 | 2, _INT4 << 32 | 4
_UUID_16, _TIMESTAMPTZ_8 = _UUID << 32 | 16, _TIMESTAMPTZ << 32 | 8
_DEAD: Final = Struct(">iIiqIi8xIi")
_TO_LEAF: Final = Struct(">IiiIi")
_NULL: Final = -1
_EVENT_COLUMNS: Final = 17
_TO_TYPE_AFTER: Final = [Struct(f">iQqQ16xQ{length}sQqIi") for length in range(256)]
"""Structs that unpack the first columns of an event in binary form, up to the length of its type. The index is the
length of the name of the event's stream, in bytes.
"""
_TO_TYPE_FIXED: Final = [
    (_EVENT_COLUMNS, _INT8_8, _UUID_16, _TEXT << 32 | length, _INT8_8, _TEXT) for length in range(256)
]
"""Expected values of the type and length fields that `_TO_TYPE_AFTER` unpacks, by the same index. Other values mean
that the bytes are not an event.
"""
_TO_DATA_LENGTH: Final = Struct(">4sIi")
_LEAF_COLUMN: Final = pack(">Ii", _BYTEA, _NULL)
_EPOCH_COLUMN: Final = _INT4_4.to_bytes(8, "big")
_NOT_AN_EVENT: Final = "a row is not that of an event: a column is missing or has another type"
# A copy of a hash that has read the first bytes of a leaf takes less time than a new hash.
_EVENT_HASH: Final = sha256(b"\x00" + VERSION + EVENT)
_DEAD_HASH: Final = sha256(b"\x00" + VERSION + DEAD)


class BadRow(ValueError):
    """The bytes of an exported row are not a row of the ledger table that they should be from."""


class Event(NamedTuple):
    """The columns of an event that a verification reads."""

    position: int
    stream: str
    version: int
    type: str
    schema_version: int
    epoch: int
    data: bytes


class Dead(NamedTuple):
    """The columns of a dead position that a verification reads."""

    position: int
    epoch: int


def event_leaf(row: bytes) -> bytes:
    """Return the leaf of an event, from all its columns."""
    leaf = _EVENT_HASH.copy()
    leaf.update(row)
    return leaf.digest()


def dead_leaf(row: bytes) -> bytes:
    """Return the leaf of a dead position, from all its columns."""
    leaf = _DEAD_HASH.copy()
    leaf.update(row)
    return leaf.digest()


def event_of(row: bytes) -> Event:
    """Return the columns of an event. Raises `BadRow`."""
    try:
        count, c1, position, c2, t1, stream = _TO_STREAM.unpack_from(row)
        is_valid = (
            count == _EVENT_COLUMNS and c1 == _INT8_8 and c2 == _UUID_16 and t1 == _TEXT and stream >= 0
        )
        end = 52 + stream
        c1, version, t1, type_ = _TO_TYPE.unpack_from(row, end)
        is_valid &= c1 == _INT8_8 and t1 == _TEXT and type_ >= 0
        at = end + 24
        end = at + type_
        event_type = row[at:end]
        c1, schema_version, t1, project = _TO_PROJECT.unpack_from(row, end)
        is_valid &= c1 == _INT2_2 and t1 == _TEXT and project >= _NULL
        end += 18 + project if project > 0 else 18
        t1, actor = _TO_TEXT.unpack_from(row, end)
        t2, reason = _TO_TEXT.unpack_from(row, end + 8 + actor)
        is_valid &= t1 == t2 == _TEXT and actor >= 0 <= reason
        end += 16 + actor + reason
        c1, t1, causation = _TO_CAUSATION.unpack_from(row, end)
        is_valid &= c1 == _UUID_16 and t1 == _UUID and causation in (16, _NULL)
        end += 48 if causation > 0 else 32
        t1, trace = _TO_TEXT.unpack_from(row, end)
        is_valid &= t1 == _TEXT and trace >= _NULL
        end += 8 + trace if trace > 0 else 8
        c1, _, c2, _, c3, epoch, t1, data = _TO_DATA.unpack_from(row, end)
        is_valid &= c1 == c2 == _TIMESTAMPTZ_8 and c3 == _INT4_4 and t1 == _TEXT and data >= 0
        at = end + 52
        end = at + data
        if is_valid and end + 8 == len(row) and _TO_TEXT.unpack_from(row, end) == (_BYTEA, _NULL):
            name, text = row[52 : 52 + stream].decode(), event_type.decode()
            return Event(position, name, version, text, schema_version, epoch, row[at:end])
    except (error, UnicodeDecodeError):
        pass
    raise BadRow(_NOT_AN_EVENT)


def sealed_columns_of(row: bytes) -> tuple[int, bytes, int, bytes, bytes]:
    """Return position, stream, version, type and epoch (4 bytes) of an event. Raises `BadRow` if the row is not that of
    an event, or if the name of its stream has more than 255 bytes.

    This function reads no other columns and does not check them, and it does not decode texts. Call it only if the
    SHA-256 of the row is the sealed leaf: then no byte was changed since the event was sealed. It finds the epoch from
    the end of the row, because no other column after it has its type, and the data behind it contain no zero byte. It
    returns a plain tuple, because a verification calls it for every event.
    """
    try:
        length = row[51]  # the last byte of the length of the stream
        count, c1, position, c2, c3, stream, c4, version, c5, type_ = _TO_TYPE_AFTER[length].unpack_from(row)
        at = row.rindex(_EPOCH_COLUMN) + 8
        epoch, t1, data = _TO_DATA_LENGTH.unpack_from(row, at)
        if (
            (count, c1, c2, c3, c4, c5) == _TO_TYPE_FIXED[length]
            and type_ >= 0
            and t1 == _TEXT
            and at + data + 20 == len(row)
            and row.endswith(_LEAF_COLUMN)
        ):
            return position, stream, version, row[76 + length : 76 + length + type_], epoch
    except (error, IndexError, ValueError):
        pass
    raise BadRow(_NOT_AN_EVENT)


def sealed_data_of(row: bytes, stream: bytes, event_type: bytes) -> tuple[int, bytes]:
    """Return version of the schema and data of an event, from the results of `sealed_columns_of`."""
    # Each column begins with 8 bytes for its type and its length; behind the data is the empty column of the leaf.
    type_end = 76 + len(stream) + len(event_type)
    data = row.rindex(_EPOCH_COLUMN) + 20
    return int.from_bytes(row[type_end + 8 : type_end + 10], "big", signed=True), row[data:-8]


def dead_of(row: bytes) -> Dead:
    """Return the columns of a dead position from its row. Raises `BadRow` if one is missing or has another type."""
    try:
        count, t1, n1, position, t2, n2, t3, seen_by = _DEAD.unpack_from(row)
        is_valid = (count, t1, n1, t2, n2, t3) == (5, _INT8, 8, _TIMESTAMPTZ, 8, _TEXT) and seen_by >= 0
        t1, n1, epoch, t2, n2 = _TO_LEAF.unpack_from(row, 44 + seen_by)
        is_valid &= (t1, n1, t2, n2) == (_INT4, 4, _BYTEA, _NULL) and 64 + seen_by == len(row)
        if is_valid:
            return Dead(position, epoch)
    except error:
        pass
    raise BadRow("a row is not that of a dead position: a column is missing or has another type")
