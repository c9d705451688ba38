"""A channel of an SSH connection, as the caller of a console session.

The channel passes the bytes of another SSH connection, which is encrypted between the caller and the slice. It buffers
at most one window of input. It accepts output until the write buffer of the SSH connection is full, and then waits
until the client reads (`control_plane.ssh_gateway.flow`).
"""

import asyncio
from typing import Final

import asyncssh

from control_plane.api.consoles.callers import SessionOver
from control_plane.ssh_gateway.authorisation import Authorisation
from control_plane.ssh_gateway.flow import Flow
from tasks.streams import MAX_MESSAGE

WINDOW: Final = 256 * 1024
"""Maximum number of bytes that a client sends before they are taken."""


class ChannelCaller(asyncssh.SSHTCPSession[bytes]):
    """A caller with a channel, authenticated with a key or a certificate. Implements `ConnectedCaller`."""

    def __init__(self, actor: str, authorisation: Authorisation, flow: Flow) -> None:
        self.actor = actor
        self._authorisation, self._flow = authorisation, flow
        self.opened = asyncio.Event()
        """Set when the node has opened the connection to the slice."""
        self._channel: asyncssh.SSHTCPChannel[bytes] | None = None
        self._input = bytearray()
        self._over: SessionOver | None = None
        self._arrived, self._writable = asyncio.Event(), asyncio.Event()

    def end(self, over: SessionOver) -> None:
        """End the console session of this caller, for the reason in `over`."""
        self._over = self._over or over
        self._arrived.set()
        self._writable.set()

    def close(self) -> None:
        """Close the channel after all output that was sent to it."""
        if self._channel is not None:
            self._channel.close()

    async def connected(self) -> None:
        self.opened.set()
        # Set by `connection_made`, or by `end` if the connection of the client is lost first.
        await self._writable.wait()
        self._raise_if_over()

    async def receive(self) -> bytes:
        while not self._input:
            self._raise_if_over()
            self._arrived.clear()
            await self._arrived.wait()
        data = bytes(self._input[:MAX_MESSAGE])
        del self._input[:MAX_MESSAGE]
        if not self._input and self._channel is not None:
            self._channel.resume_reading()
        return data

    def has_input(self, data: bytes) -> bool:
        # What the encrypted bytes are is not known; they also acknowledge output.
        return True

    async def send(self, data: bytes) -> None:
        await self._writable.wait()
        await self._flow.wait()
        self._raise_if_over()
        try:
            assert self._channel is not None, "connection_made must be called before data can be sent"
            self._channel.write(data)
        except OSError:
            raise _closed() from None

    async def verify(self) -> None:
        # `receive` and `send` raise the end only when they are called or resumed, which a blocked peer would delay.
        self._raise_if_over()
        await self._authorisation.verify()

    def _raise_if_over(self) -> None:
        if self._over is not None:
            raise self._over

    # Calls of asyncssh.
    def connection_made(self, chan: asyncssh.SSHTCPChannel[bytes]) -> None:
        self._channel = chan
        self._writable.set()

    def data_received(self, data: bytes, datatype: asyncssh.DataType) -> None:
        self._input += data
        if self._channel is not None:
            self._channel.pause_reading()
        self._arrived.set()

    def eof_received(self) -> bool:
        # The rest of the input is passed on first. An SSH client closes its input only at its end.
        self.end(_closed())
        return True

    def pause_writing(self) -> None:
        if self._over is None:
            self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(_closed())


def _closed() -> SessionOver:
    return SessionOver("closed_by_caller", "the caller closed the connection")
