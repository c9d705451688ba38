"""The WebSocket with which a node opens a requested stream. It dials out to the API with the credential of its session.

Messages in both directions are bounded. The library reads ahead a few messages and then stops reading from the
connection, so a console that takes no input slows the sender down.

All connections belong to one event loop with a thread of its own. OpenSSL does not permit two threads to use one TLS
connection at the same time, but `websockets.sync` reads in one thread while another one writes: handshakes then hang,
and connections end with an error.
"""

import asyncio
import threading
from collections.abc import Coroutine
from functools import lru_cache
from types import TracebackType
from typing import Any, Final, TypeVar
from uuid import UUID

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from node_agent.settings import Settings, SettingsRefused, api_trust
from node_agent.transport.client import ControlPlaneUnavailable, Credentials
from tasks.streams import MAX_MESSAGE, ConsoleOpened

_OPEN_SECONDS: Final = 5.0
_CLOSE_SECONDS: Final = 1.0
_MOST_BYTES: Final = 1024 * 1024
"""Maximum size in bytes of a message from the control plane. The control plane limits the messages of callers to much
less.
"""
R = TypeVar("R")


class StreamSocket:
    """An open WebSocket of a stream. One thread may receive and another may send at the same time."""

    def __init__(self, settings: Settings, credentials: Credentials, stream: UUID) -> None:
        """Open the stream. Raises `ControlPlaneUnavailable`, also if the control plane no longer waits for it."""
        self._loop = _loop()
        self._connection = self._run(_connected(settings, credentials.bearer, stream))

    def opened(self, message: ConsoleOpened) -> None:
        """Send the first message of the stream, which states whether the node opened the console. Raises
        `ControlPlaneUnavailable`.
        """
        try:
            self._run(self._connection.send(message.model_dump_json()))
        except ConnectionClosed as error:
            raise ControlPlaneUnavailable(f"the stream was closed: {error}") from error

    def send(self, data: bytes) -> bool:
        """Send output of the slice, and return whether the stream is still open."""
        try:
            for start in range(0, len(data), MAX_MESSAGE):
                self._run(self._connection.send(data[start : start + MAX_MESSAGE]))
        except ConnectionClosed:
            return False
        return True

    def receive(self) -> bytes | None:
        """Wait for input of the caller and return it; None when the stream is closed."""
        try:
            found = self._run(self._connection.recv())
        except ConnectionClosed:
            return None
        return found.encode() if isinstance(found, str) else found

    def close(self) -> None:
        self._run(self._connection.close())

    def __enter__(self) -> "StreamSocket":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine in the event loop of the connection, and wait for its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


@lru_cache(maxsize=1)
def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of the connections of this process, which runs in a thread."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="stream-sockets", daemon=True).start()
    return loop


async def _connected(settings: Settings, bearer: str, stream: UUID) -> ClientConnection:
    url = f"ws{settings.api_url.removeprefix('http').rstrip('/')}/v1/agent/streams/{stream}"
    try:
        return await connect(
            url,
            ssl=api_trust(settings),
            additional_headers={"Authorization": f"Bearer {bearer}"},
            open_timeout=_OPEN_SECONDS,
            close_timeout=_CLOSE_SECONDS,
            compression=None,
            max_size=_MOST_BYTES,
            # As in the HTTP client: the node's credential must not go where the host's root user configured.
            proxy=None,
        )
    except (OSError, TimeoutError, WebSocketException, SettingsRefused) as error:
        raise ControlPlaneUnavailable(f"the stream {stream} could not be opened: {error}") from error
