"""A WebSocket for threads: one thread may read while another one writes.

The connections belong to one event loop with a thread of its own. OpenSSL does not permit two threads to use one TLS
connection at the same time, but `websockets.sync` reads in one thread while another one writes: handshakes then hang,
and connections end with an error.
"""

import asyncio
import ssl
import threading
from collections.abc import Coroutine, Iterator, Mapping
from functools import lru_cache
from types import TracebackType
from typing import Any, TypeVar

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosedOK
from websockets.typing import Data

R = TypeVar("R")


class WebSocket:
    """An open WebSocket. `send` and `receive` raise `websockets.exceptions.ConnectionClosed` if it is closed."""

    def __init__(
        self, url: str, *, trusted: ssl.SSLContext | None, headers: Mapping[str, str], seconds: float
    ) -> None:
        """Connect to `url`; the connection and its handshake may take `seconds`. `trusted` has the CAs that verify the
        server of a `wss` address; None for a `ws` address.

        Raises `OSError`, `TimeoutError` and `websockets.exceptions.WebSocketException`.
        """
        self._loop = _loop()
        self._connection = self._run(_connected(url, trusted, headers, seconds))

    def send(self, data: Data) -> None:
        """Send a message as soon as the server has taken enough of the earlier ones."""
        self._run(self._connection.send(data))

    def receive(self, seconds: float | None = None) -> Data:
        """Return the next message. Raises `TimeoutError` if there is none within `seconds`."""
        return self._run(asyncio.wait_for(self._connection.recv(), seconds))

    def close(self) -> None:
        """Close the connection; a call of `receive` in another thread ends."""
        self._run(self._connection.close())

    def __iter__(self) -> Iterator[Data]:
        """Return the messages until the server closes the connection without an error."""
        try:
            while True:
                yield self.receive()
        except ConnectionClosedOK:
            return

    def __enter__(self) -> "WebSocket":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


@lru_cache(maxsize=1)
def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of the connections of this process, which runs in a thread."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="web-sockets", daemon=True).start()
    return loop


async def _connected(
    url: str, trusted: ssl.SSLContext | None, headers: Mapping[str, str], seconds: float
) -> ClientConnection:
    return await connect(url, ssl=trusted, additional_headers=headers, open_timeout=seconds, compression=None)
