"""Connection of the two ends of a stream through Redis: the process of the API with the caller's WebSocket, and the one
with the node's. They may be the same process; there is one path for both cases.

Each direction of a stream is a Redis channel. Redis does not store what is published, so each end sends at most
`WINDOW` bytes that the other end has not taken yet: then it waits. Both ends publish an empty message every second. An
end that receives nothing for `SILENT_SECONDS`, or that loses its connection to Redis, ends the stream, because a
message may be missing. A node has no permission for these channels.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Literal
from uuid import UUID

from redis.asyncio import Redis
from redis.asyncio.client import PubSub

from control_plane.outage import REDIS_UNAVAILABLE, raise_if_cancelled

Side = Literal["caller", "node"]
WINDOW: Final = 256 * 1024
"""Maximum number of bytes in flight in one direction."""
BEAT_SECONDS: Final = 1.0
SILENT_SECONDS: Final = 4.0
_POLL_SECONDS: Final = 0.4
_DATA, _TAKEN, _ALIVE, _OPENED, _CLOSED = b"D", b"T", b"A", b"O", b"C"


class PairEnded(Exception):
    """The process at the other end of the stream closed it, or no longer responds. `detail` is the reason that this
    process sent, empty if it sent none.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.detail = detail


class StreamEnd:
    """One end of a stream between a caller and a node, in the process that has the connection of one of them. The other
    end is in the process with the connection of the other. One asyncio task may send and one may receive at a time;
    `run` must run beside them.

    `send` and `receive` check for a swallowed cancellation (`raise_if_cancelled`), because the caller repeats them, and
    the next call could wait permanently.
    """

    def __init__(self, client: Redis, subscription: PubSub, own: str, other: str) -> None:
        self._client, self._subscription = client, subscription
        self._own, self._other = own, other
        self._received: asyncio.Queue[tuple[bytes, bytes]] = asyncio.Queue()
        self._in_flight, self._room = 0, asyncio.Event()
        self._room.set()

    async def opened(self, detail: str) -> None:
        """Notify the process at the other end of the stream that this end is connected; `detail` is empty, or the JSON
        of a failure.
        """
        await self._publish(_OPENED + detail.encode())

    async def close(self, detail: str) -> None:
        """End the stream, and send `detail` as the reason to the process at its other end."""
        with suppress(*REDIS_UNAVAILABLE):
            await self._publish(_CLOSED + detail.encode())

    async def send(self, data: bytes) -> None:
        """Send bytes to the process at the other end of the stream as soon as it has taken enough earlier bytes."""
        raise_if_cancelled()
        while self._in_flight + len(data) > WINDOW:
            self._room.clear()
            await self._room.wait()
        self._in_flight += len(data)
        await self._publish(_DATA + data)
        raise_if_cancelled()

    async def receive(self) -> bytes:
        """Return the next bytes from the process at the other end of the stream, which may then send more. Raises
        `PairEnded`.
        """
        raise_if_cancelled()
        kind, data = await self._received.get()
        if kind == _CLOSED:
            raise PairEnded("the other end closed the stream", data.decode(errors="replace"))
        await self._publish(_TAKEN + str(len(data)).encode())
        return data

    async def wait_until_opened(self) -> str:
        """Wait until the other end of the stream is connected, and return the detail that it sent: an empty text, or
        the JSON of a failure. Raises `PairEnded`.
        """
        kind, data = await self._received.get()
        if kind != _OPENED:
            raise PairEnded("the other end closed the stream", data.decode(errors="replace"))
        return data.decode(errors="replace")

    async def run(self, first_seconds: float = SILENT_SECONDS) -> None:
        """Take messages from the process at the other end of the stream until none arrives for `SILENT_SECONDS`; the
        first may take `first_seconds`. Raises `PairEnded`, and errors of Redis.
        """
        clock = asyncio.get_running_loop().time
        beat, lost_at = clock(), clock() + first_seconds
        while True:
            raise_if_cancelled()
            if clock() > lost_at:
                raise PairEnded("the API process at the other end of the stream no longer responds")
            if clock() >= beat:
                beat = clock() + BEAT_SECONDS
                await self._publish(_ALIVE)
            message = await self._subscription.get_message(timeout=_POLL_SECONDS)
            if message is not None:
                lost_at = clock() + SILENT_SECONDS
                self._take(message)

    def _take(self, message: dict[str, Any]) -> None:
        kind, data = message["data"][:1], message["data"][1:]
        if kind == _TAKEN:
            self._in_flight -= int(data)
            self._room.set()
        elif kind in (_DATA, _OPENED, _CLOSED):
            self._received.put_nowait((kind, data))

    async def _publish(self, message: bytes) -> None:
        await self._client.publish(self._other, message)


@asynccontextmanager
async def stream_end(client: Redis, stream: UUID, side: Side) -> AsyncIterator[StreamEnd]:
    """Provide one end of a stream, with its subscription to Redis. Raises errors of Redis."""
    channels = {each: f"stream:{stream}:to-{each}" for each in ("caller", "node")}
    own, other = channels[side], channels["node" if side == "caller" else "caller"]
    async with client.pubsub(ignore_subscribe_messages=True) as subscription:
        await subscription.subscribe(own)
        yield StreamEnd(client, subscription, own, other)
