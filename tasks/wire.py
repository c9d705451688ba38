"""An order as the bytes that stand in a queue: Dramatiq's own message format, narrowed to what we send.

The order travels as one JSON string, its exact bytes kept, so that a signature over them can be checked. Everything
around it is unsigned and read strictly: one argument, no keyword arguments, no options. An option would be a
way to steer a worker from the queue (`eta` delays, `time_limit` stretches), past what the order itself says.

Operations travel as orders do.
"""

from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

import msgspec
from dramatiq import Message
from dramatiq.errors import DecodeError

from tasks.catalogue import CATALOGUE, bounds_of
from tasks.scripts import DEFAULT_QUEUE

_SEAL_BYTES: Final = 1024
"""More than a signed text has beside its order: header, signature, expiry."""


class OrderTooLarge(ValueError):
    """An order of more bytes than its type allows (TSK-1: payloads are bounded)."""

    def __init__(self, order_id: UUID, size: int, bound: int) -> None:
        super().__init__(f"order {order_id} has {size} bytes, and at most {bound} are sent")
        self.order_id, self.size = order_id, size


class MalformedMessage(ValueError):
    """Bytes in a queue that are not one of our messages."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"not an order message: {reason}")
        self.reason = reason


class _Message(msgspec.Struct, kw_only=True):
    """Dramatiq's message, as its own encoder would write it."""

    queue_name: str
    actor_name: str
    args: tuple[str]
    kwargs: dict[str, object] = {}
    options: dict[str, object] = {}
    message_id: str
    message_timestamp: int


@dataclass(frozen=True, slots=True)
class OrderMessage:
    """An order on its way: its id, the actor it is for (the order's kind), and its signed text."""

    order_id: UUID
    actor: str
    order: str


def encode_order(message: OrderMessage, *, sent_at: datetime, queue: str = DEFAULT_QUEUE) -> bytes:
    """The bytes to enqueue; `sent_at` (the database's time) only informs. Raises `OrderTooLarge`."""
    if (size := len(message.order.encode())) > (bound := sealed_bytes(message.actor)):
        raise OrderTooLarge(message.order_id, size, bound)
    sent = _Message(
        queue_name=queue,
        actor_name=message.actor,
        args=(message.order,),
        message_id=str(message.order_id),
        message_timestamp=int(sent_at.timestamp() * 1000),
    )
    return msgspec.json.encode(sent)


def refuse_too_large(order_id: UUID, kind: str, order: str) -> None:
    """Raises `OrderTooLarge` for an order or operation, unsigned, that no node would take, and `NotInCatalogue`."""
    if (size := len(order.encode())) > (bound := bounds_of(kind).payload_bytes):
        raise OrderTooLarge(order_id, size, bound)


@lru_cache(maxsize=64)  # of kinds in the catalogue; of others a node may make up as many as it likes
def sealed_bytes(kind: str) -> int:
    """How long the signed text of a task of this kind may be; of an unknown kind, what the longest may have."""
    types = (CATALOGUE[kind],) if kind in CATALOGUE else CATALOGUE.values()
    # Base64 makes four characters of three bytes.
    return (max(type_.bounds.payload_bytes for type_ in types) + 2) // 3 * 4 + _SEAL_BYTES


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
