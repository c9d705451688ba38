"""TCP proxy to a server. A test can delay, cut or hold up the connections through the proxy, with TLS or without."""

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from tests.waiting import dawdle, until

_CHUNK: Final = 1 << 16
_RESET: Final = struct.pack("ii", 1, 0)
"""Value of the socket option SO_LINGER with which closing a socket sends a TCP reset."""


class SlowProxy:
    """TCP proxy that forwards to `target`, a port of this machine. It forwards each piece of data `delay` seconds late,
    and nothing while `held_up` is true.

    The attributes may be set from any thread, and apply to data that arrives later.
    """

    def __init__(self, target: int) -> None:
        self.port = 0
        self.delay = 0.0
        self.held_up = False
        self.passed = 0
        """Number of bytes that the proxy has forwarded in both directions."""
        self._target = target
        self.loop = asyncio.new_event_loop()
        self._ends: set[asyncio.StreamWriter] = set()
        self._carriers: set[asyncio.Task[None]] = set()

    def reset(self) -> None:
        """Cut every open connection of the proxy."""
        asyncio.run_coroutine_threadsafe(self._reset(), self.loop).result(10)

    def heal(self) -> None:
        self.delay, self.held_up = 0.0, False

    async def _reset(self) -> None:
        for end in list(self._ends):
            _cut(end)

    async def serve(self, stop: asyncio.Event) -> None:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        await stop.wait()
        server.close()
        left = list(self._carriers)
        for carrier in left:
            carrier.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        carrier = asyncio.create_task(self._carry(reader, writer))
        self._carriers.add(carrier)
        carrier.add_done_callback(self._carriers.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self._target)
            ends = {writer, other_writer}
            self._ends |= ends
            try:
                await asyncio.gather(self._pump(reader, other_writer), self._pump(other_reader, writer))
            finally:
                self._ends -= ends
                for end in ends:
                    _cut(end)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK):
            if self.delay:
                await dawdle(self.delay)
            while self.held_up:
                await dawdle(0.02)
            writer.write(data)
            self.passed += len(data)
            await writer.drain()
        raise ConnectionResetError


def _cut(end: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    end.transport.abort()


@contextmanager
def slow_proxy(target: int) -> Iterator[SlowProxy]:
    """Run a TCP proxy to the port `target` and yield it. The proxy initially has no fault."""
    proxy, stop = SlowProxy(target), asyncio.Event()
    loop = proxy.loop
    thread = threading.Thread(target=lambda: loop.run_until_complete(proxy.serve(stop)))
    thread.start()
    try:
        until(lambda: proxy.port != 0, "the proxy listens")
        yield proxy
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()
