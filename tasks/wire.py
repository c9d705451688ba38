"""An order as the bytes that stand in a queue: Dramatiq's own message format, narrowed to what we send.

The order travels as one JSON string, its exact bytes kept, so that a signature over them can be checked. Everything
around it is unsigned and read strictly: one argument, no keyword arguments, no options. An option would be a
way to steer a worker from the queue (`eta` delays, `time_limit` stretches), past what the order itself says.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from dramatiq import Message
from dramatiq.errors import DecodeError

from tasks.scripts import DEFAULT_QUEUE

MAX_ORDER_BYTES: Final = 64 * 1024


class OrderTooLarge(ValueError):
    """An order of more than `MAX_ORDER_BYTES` bytes (TSK-1: payloads are bounded)."""

    def __init__(self, order_id: UUID, size: int) -> None:
        super().__init__(f"order {order_id} has {size} bytes, and at most {MAX_ORDER_BYTES} are sent")
        self.order_id, self.size = order_id, size


class MalformedMessage(ValueError):
    """Bytes in a queue that are not one of our messages."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"not an order message: {reason}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class OrderMessage:
    """An order on its way: its id, the actor it is for (the order's kind), and its JSON as sent."""

    order_id: UUID
    actor: str
    order: str


def encode_order(message: OrderMessage, *, sent_at: datetime, queue: str = DEFAULT_QUEUE) -> bytes:
    """The bytes to enqueue; `sent_at` (the database's time) only informs. Raises `OrderTooLarge`."""
    refuse_too_large(message.order_id, message.order)
    return _dramatiq_message(message, queue, int(sent_at.timestamp() * 1000)).encode()


def refuse_too_large(order_id: UUID, order: str) -> None:
    """Raises `OrderTooLarge` for an order that could never be sent."""
    if (size := len(order.encode())) > MAX_ORDER_BYTES:
        raise OrderTooLarge(order_id, size)


def decode_order(data: bytes) -> OrderMessage:
    """The order in a queue's bytes. Raises `MalformedMessage`."""
    return order_of(decode_message(data))


def decode_message(data: bytes) -> Message[Any]:
    """The Dramatiq message in a queue's bytes, checked to be one of ours. Raises `MalformedMessage`."""
    try:
        message: Message[Any] = Message.decode(data)
    except DecodeError:
        raise MalformedMessage("its bytes are not a message's JSON") from None
    order_of(message)
    return message


def order_of(message: Message[Any]) -> OrderMessage:
    """The order that a Dramatiq message carries. Raises `MalformedMessage`."""
    match message:
        case Message(args=(str(order),), kwargs={**kwargs}, options={**options}) if (
            not kwargs and not options
        ):
            return OrderMessage(_order_id(message.message_id), _actor(message.actor_name), order)
    raise MalformedMessage("it must carry one string, no keyword arguments and no options")


def _order_id(raw: object) -> UUID:
    try:
        return UUID(str(raw))
    except ValueError:
        raise MalformedMessage("its id is not a UUID") from None


def _actor(raw: object) -> str:
    if not isinstance(raw, str):
        raise MalformedMessage("its actor's name is not a string")
    return raw


def _dramatiq_message(message: OrderMessage, queue: str, timestamp: int) -> Message[Any]:
    return Message(
        queue_name=queue,
        actor_name=message.actor,
        args=(message.order,),
        kwargs={},
        options={},
        message_id=str(message.order_id),
        message_timestamp=timestamp,
    )
