"""Tests of the verifier's reading of rows: rows are read from the bytes of the leaf encoding, and wrong bytes are
refused.
"""

from contextlib import suppress
from datetime import UTC
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.audit.rows import (
    BadRow,
    Dead,
    Event,
    dead_leaf,
    dead_of,
    event_leaf,
    event_of,
    sealed_columns_of,
    sealed_data_of,
)
from events.ledger.merkle import DeadRow, EventRow, encoding_of, leaf_of

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
TIME = st.datetimes(timezones=st.just(UTC))
BIGINT, INTEGER = st.integers(-(2**63), 2**63 - 1), st.integers(-(2**31), 2**31 - 1)
LIKE_AN_EPOCH = UUID(bytes=b"\0\0\0\x17\0\0\0\4" * 2)
"""An id that contains the bytes that precede the epoch in the encoding of an event."""
IDS = st.uuids() | st.just(LIKE_AN_EPOCH)
EVENTS = st.builds(
    EventRow, BIGINT, IDS, TEXT, BIGINT, TEXT, st.integers(-(2**15), 2**15 - 1), st.none() | TEXT, TEXT, TEXT,
    IDS, st.none() | IDS, st.none() | TEXT, TIME, TIME, INTEGER, TEXT,
)  # fmt: skip
DEAD = st.builds(DeadRow, BIGINT, TIME, TEXT, INTEGER)


@given(EVENTS)
def test_event_is_read_from_its_encoding_and_has_the_same_leaf(row: EventRow) -> None:
    encoded = encoding_of(row)[2:]

    assert event_of(encoded) == Event(
        row.position,
        row.stream_id,
        row.version,
        row.type,
        row.schema_version,
        row.epoch,
        row.data.encode(),
    )
    columns = sealed_columns_of(encoded)
    assert columns == (
        row.position, row.stream_id.encode(), row.version, row.type.encode(), row.epoch.to_bytes(4, "big", signed=True),
    )  # fmt: skip
    assert sealed_data_of(encoded, columns[1], columns[3]) == (row.schema_version, row.data.encode())
    assert event_leaf(encoded) == leaf_of(row)
    with pytest.raises(BadRow):
        dead_of(encoded)


@given(DEAD)
def test_dead_position_is_read_from_its_encoding_and_has_the_same_leaf(row: DeadRow) -> None:
    encoded = encoding_of(row)[2:]

    assert dead_of(encoded) == Dead(row.position, row.epoch)
    assert dead_leaf(encoded) == leaf_of(row)
    with pytest.raises(BadRow):
        event_of(encoded)


@given(EVENTS | DEAD, st.data())
def test_row_with_missing_or_extra_bytes_is_refused(row: EventRow | DeadRow, data: st.DataObject) -> None:
    encoded, read = encoding_of(row)[2:], event_of if isinstance(row, EventRow) else dead_of

    for wrong in (encoded[: data.draw(st.integers(0, len(encoded) - 1))], encoded + b"\0"):
        with pytest.raises(BadRow):
            read(wrong)


@given(EVENTS | DEAD, st.data())
def test_row_with_a_changed_byte_is_refused_or_has_a_different_leaf(
    row: EventRow | DeadRow, data: st.DataObject
) -> None:
    encoded = bytearray(encoding_of(row)[2:])
    is_event = isinstance(row, EventRow)
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))

    assert (event_leaf if is_event else dead_leaf)(bytes(encoded)) != leaf_of(row)
    with suppress(BadRow):
        sealed_columns_of(bytes(encoded))
    with suppress(BadRow):
        (event_of if is_event else dead_of)(bytes(encoded))
