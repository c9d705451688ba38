"""An order's bytes in a queue."""

from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.wire import (
    MAX_ORDER_BYTES,
    MalformedMessage,
    OrderMessage,
    OrderTooLarge,
    decode_order,
    encode_order,
)

ORDER = UUID("01934e6a-0000-7000-8000-000000000001")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_an_orders_bytes_are_dramatiqs_message_format() -> None:
    assert encode_order(OrderMessage(ORDER, "slice.apply", '{"a":1}'), sent_at=NOON) == (
        b'{"queue_name":"slices","actor_name":"slice.apply","args":["{\\"a\\":1}"],"kwargs":{},"options":{},'
        b'"message_id":"01934e6a-0000-7000-8000-000000000001","message_timestamp":1767268800000}'
    )


@given(order=st.text(max_size=200))
def test_an_order_comes_out_as_it_went_in(order: str) -> None:
    message = OrderMessage(ORDER, "slice.apply", order)
    assert decode_order(encode_order(message, sent_at=NOON)) == message


def test_an_order_past_its_bound_is_not_sent() -> None:
    with pytest.raises(OrderTooLarge) as refused:
        encode_order(OrderMessage(ORDER, "slice.apply", "é" * MAX_ORDER_BYTES), sent_at=NOON)
    assert refused.value.size == 2 * MAX_ORDER_BYTES


@given(data=st.binary(max_size=300))
def test_any_bytes_are_an_order_or_malformed(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_order(data)
