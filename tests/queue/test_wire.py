"""Tests of the wire format of orders in a queue."""

from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.catalogue import bounds_of
from tasks.wire import (
    MalformedMessage,
    OrderMessage,
    OrderTooLarge,
    decode_message,
    encode_order,
    order_of,
    refuse_too_large,
    sealed_bytes,
)

ORDER = UUID("01934e6a-0000-7000-8000-000000000001")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_order_is_encoded_in_the_message_format_of_dramatiq() -> None:
    assert encode_order(OrderMessage(ORDER, "slice.apply", '{"a":1}'), sent_at=NOON) == (
        b'{"queue_name":"slices","actor_name":"slice.apply","args":["{\\"a\\":1}"],"kwargs":{},"options":{},'
        b'"message_id":"01934e6a-0000-7000-8000-000000000001","message_timestamp":1767268800000}'
    )


@given(order=st.text(max_size=200))
def test_encoded_order_decodes_to_the_same_order(order: str) -> None:
    message = OrderMessage(ORDER, "slice.apply", order)
    assert order_of(decode_message(encode_order(message, sent_at=NOON))) == message


@pytest.mark.parametrize("kind", ["slice.apply", "node.verify", "drift.report"])
def test_task_larger_than_its_type_allows_raises_order_too_large(kind: str) -> None:
    bound = bounds_of(kind).payload_bytes
    refuse_too_large(ORDER, kind, "a" * bound)
    with pytest.raises(OrderTooLarge) as refused:
        refuse_too_large(ORDER, kind, "é" * (bound // 2 + 1))
    assert refused.value.size == bound // 2 * 2 + 2


def test_order_with_a_signed_text_above_its_size_limit_raises_order_too_large() -> None:
    bound = sealed_bytes("node.verify")
    encode_order(OrderMessage(ORDER, "node.verify", "a" * bound), sent_at=NOON)
    with pytest.raises(OrderTooLarge):
        encode_order(OrderMessage(ORDER, "node.verify", "a" * (bound + 1)), sent_at=NOON)


@given(data=st.binary(max_size=300))
def test_arbitrary_bytes_in_place_of_a_queue_message_raise_malformed_message(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_message(data)
