"""Requests for streams from nodes, and their answers.

A process of the API puts a signed request in the node's queue and waits for the answer in Redis, because the node may
send the answer to another process. While the process waits, Redis has a key with the node and the id of the stream. The
first answer deletes this key, so that a node can store one answer per request and cannot fill Redis. If the node does
not answer in time, the request is withdrawn from its queue; a copy that stays there after a crash expires.

Every function raises `RedisUnavailable`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar, cast
from uuid import UUID

from redis.asyncio import Redis

from control_plane.outage import REDIS_UNAVAILABLE, raise_if_cancelled
from control_plane.queues.redis_nodes import RedisUnavailable
from control_plane.queues.relay import AlreadyQueued, Enqueued, Relay
from events.values import NodeId
from tasks.streams import ACTOR, SerialLogSent, StreamRequest
from tasks.wire import OrderMessage, encode_order

T = TypeVar("T")
Seal = Callable[[str, datetime], str]
"""Function that signs the JSON of a request, with the time until which the node may begin."""
ANSWER_SECONDS: Final = 10.0
"""Time for which the API waits for a node's answer."""
_EXPIRES: Final = timedelta(seconds=15)
_KEPT_SECONDS: Final = 30
_POLL_SECONDS: Final = 0.4
"""Time of one blocking read, shorter than the timeout of the connections to Redis."""


async def serial_log(
    client: Redis, seal: Seal, request: StreamRequest, now: datetime, seconds: float = ANSWER_SECONDS
) -> SerialLogSent | None:
    """Request a serial log from a node and return its answer; None if the node does not answer in time. `now` is the
    database's time.
    """
    wanted, answer = _keys(request.node_id, request.stream_id)
    relay = Relay(client)
    await _call(client.set(wanted, b"1", ex=_KEPT_SECONDS))
    try:
        text = seal(request.model_dump_json(), now + _EXPIRES)
        message = encode_order(OrderMessage(request.stream_id, ACTOR, text), sent_at=now)
        outcome = await relay.enqueue(request.node_id, request.stream_id, message)
        if not isinstance(outcome, Enqueued | AlreadyQueued):
            return None
        content = await _answer(client, answer, seconds)
        return None if content is None else SerialLogSent.model_validate_json(content)
    finally:
        await _call(client.delete(wanted, answer))
        await relay.withdraw(request.node_id, request.stream_id)


async def request_stream(client: Redis, seal: Seal, request: StreamRequest, now: datetime) -> bool:
    """Request a node to open a stream, and return whether the request is in its queue. `take_request` accepts the
    stream of the node once.
    """
    wanted, _ = _keys(request.node_id, request.stream_id)
    await _call(client.set(wanted, b"1", ex=int(_EXPIRES.total_seconds())))
    text = seal(request.model_dump_json(), now + _EXPIRES)
    message = encode_order(OrderMessage(request.stream_id, ACTOR, text), sent_at=now)
    outcome = await Relay(client).enqueue(request.node_id, request.stream_id, message)
    return isinstance(outcome, Enqueued | AlreadyQueued)


async def withdraw_request(client: Redis, node: NodeId, stream: UUID) -> None:
    """Remove a request from the node's queue, and accept its stream no more."""
    wanted, _ = _keys(node, stream)
    await _call(client.delete(wanted))
    await Relay(client).withdraw(node, stream)


async def take_request(client: Redis, node: NodeId, stream: UUID) -> bool:
    """Return whether the stream was requested from this node and not opened yet; it is then open."""
    return await _call(client.getdel(_keys(node, stream)[0])) is not None


async def accept_serial_log(client: Redis, node: NodeId, sent: SerialLogSent) -> None:
    """Store a node's answer for the process that waits for it. An answer that no process waits for is dropped."""
    wanted, answer = _keys(node, sent.stream_id)
    if await _call(client.getdel(wanted)) is None:
        return
    pipeline = client.pipeline(transaction=True)
    pipeline.rpush(answer, sent.model_dump_json())
    pipeline.expire(answer, _KEPT_SECONDS)
    await _call(pipeline.execute())


def _keys(node: NodeId, stream: UUID) -> tuple[str, str]:
    """Return two Redis keys of a request for a stream: the key that exists while a process waits for the node's answer,
    and the key that stores the answer. A node has access to neither.
    """
    return f"stream:{node}:{stream}:wanted", f"stream:{node}:{stream}:answer"


async def _answer(client: Redis, key: str, seconds: float) -> bytes | None:
    until = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < until:
        raise_if_cancelled()
        found = await _call(cast(Awaitable[Any], client.blpop([key], timeout=_POLL_SECONDS)))
        if found is not None:
            return bytes(found[1])
    return None


async def _call(call: Awaitable[T]) -> T:
    try:
        return await call
    except REDIS_UNAVAILABLE as error:
        raise RedisUnavailable(f"Redis did not answer: {type(error).__name__}: {error}") from error
