"""The bytes of an order in a queue: Dramatiq's message format, restricted to the parts that are used.

The order is one JSON string. Its exact bytes are kept, so that a signature over them can be verified. The rest of the
message is unsigned and parsed strictly: one argument, no keyword arguments, no options. An option could control a
worker from the queue (`eta` delays, `time_limit` extends) beyond the content of the order.

Operations are encoded in the same way.
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
from tasks.heads import MAX_HEAD
from tasks.scripts import DEFAULT_QUEUE

_SEAL_BYTES: Final = 1024 + (MAX_HEAD + 2) // 3 * 4
"""Upper bound for the size of a signed text without its order: header, signature, expiry, head of the ledger."""


class OrderTooLarge(ValueError):
    """An order of more bytes than its type allows (TSK-1: payloads are bounded)."""

    def __init__(self, order_id: UUID, size: int, bound: int) -> None:
        super().__init__(f"order {order_id} has {size} bytes; the maximum for its type is {bound}")
        self.order_id, self.size = order_id, size


class MalformedMessage(ValueError):
    """Bytes in a queue that are not a valid order message."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the queue contains bytes that are not an order message: {reason}")
        self.reason = reason


class _Message(msgspec.Struct, kw_only=True):
    """Fields of a Dramatiq message, which are encoded to the same JSON as by Dramatiq's own encoder."""

    queue_name: str
    actor_name: str
    args: tuple[str]
    kwargs: dict[str, object] = {}
    options: dict[str, object] = {}
    message_id: str
    message_timestamp: int


@dataclass(frozen=True, slots=True)
class OrderMessage:
    """An order as it is sent: its id, its actor (the order's kind), and its signed text."""

    order_id: UUID
    actor: str
    order: str


def encode_order(message: OrderMessage, *, sent_at: datetime, queue: str = DEFAULT_QUEUE) -> bytes:
    """Return the bytes of an order message for a queue. `sent_at` (the database's time) is informative only. Raises
    `OrderTooLarge`.
    """
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
    """Raise `OrderTooLarge` if an unsigned order or operation exceeds its type's maximum size. Raises `NotInCatalogue`
    for an unknown type.
    """
    if (size := len(order.encode())) > (bound := bounds_of(kind).payload_bytes):
        raise OrderTooLarge(order_id, size, bound)


@lru_cache(maxsize=64)  # bounded, because a node may invent any number of unknown kinds
def sealed_bytes(kind: str) -> int:
    """Return the maximum length of the signed text of a task of this kind; for an unknown kind, the maximum of all
    kinds.
    """
    types = (CATALOGUE[kind],) if kind in CATALOGUE else CATALOGUE.values()
    # Base64 encodes three bytes as four characters.
    return (max(type_.bounds.payload_bytes for type_ in types) + 2) // 3 * 4 + _SEAL_BYTES


def decode_message(data: bytes) -> Message[Any]:
    """Return the Dramatiq message in a queue's bytes if it is a valid order message. Raises `MalformedMessage`."""
    try:
        message: Message[Any] = Message.decode(data)
    except DecodeError:
        raise MalformedMessage("the bytes in the queue are not the JSON of a Dramatiq message") from None
    order_of(message)
    return message


def order_of(message: Message[Any]) -> OrderMessage:
    """Return the order in a Dramatiq message. Raises `MalformedMessage`."""
    match message:
        case Message(args=(str(order),), kwargs={**kwargs}, options={**options}) if (
            not kwargs and not options
        ):
            return OrderMessage(_order_id(message.message_id), _actor(message.actor_name), order)
    raise MalformedMessage(
        "the Dramatiq message of a task must have one string argument, no keyword arguments and no options"
    )


def _order_id(raw: object) -> UUID:
    try:
        return UUID(str(raw))
    except ValueError:
        raise MalformedMessage("the id of the Dramatiq message is not a UUID") from None


def _actor(raw: object) -> str:
    if not isinstance(raw, str):
        raise MalformedMessage("the actor name of the Dramatiq message is not a string")
    return raw
