"""What one connection can occupy of a process of the SSH gateway: the memory for output that its peer does not read,
and the time until the process turns to other connections.

asyncssh writes packets to the transport of a connection without waiting for the peer, and keeps them in a list during a
key exchange (RFC 4253 section 9). The window of a channel does not limit this, because the peer chooses its size.
"""

import asyncio
from asyncio import selector_events, sslproto
from typing import Any, Final

import asyncssh

LEAST_PACKET: Final = 1024
"""Smallest maximum packet size in bytes that a peer may choose for a channel. asyncssh sends the bytes of one write as
packets of this size at once, so that packets of one byte would stop all other work of the process. RFC 4253 section 6.1
requires 32,768 bytes from each implementation.
"""
READ_BYTES: Final = 2048
"""Maximum number of bytes that are read from a connection before other connections are served. The smallest packets of
SSH and of WebSockets have some tens of bytes, and each of them costs up to 0.3 ms.
"""
MOST_DEFERRED: Final = 1000
"""Maximum number of packets that asyncssh defers during a key exchange, including the packets of channels. A connection
that exceeds it is aborted.
"""
_KEY_EXCHANGE_SECONDS: Final = 0.05


def read_in_small_parts() -> None:
    """Let the event loops of this process, which must be those of asyncio, read at most `READ_BYTES` at once. TLS
    passes on the content of whole records, which have at most 16 KiB.
    """
    # asyncio has no option for it. By default, it reads 256 KiB, and uvloop more.
    selector_events._SelectorSocketTransport.max_size = READ_BYTES  # type: ignore[attr-defined]  # noqa: SLF001
    sslproto.SSLProtocol.max_size = READ_BYTES


class Flow:
    """Flow control of one SSH connection. While the write buffer of the transport is full, nothing is read from the
    peer, because each request of the peer causes a reply. During a key exchange, reading continues; if more than
    `MOST_DEFERRED` packets are deferred, the connection is aborted.
    """

    def __init__(self, connection: asyncssh.SSHServerConnection | asyncssh.SSHClientConnection) -> None:
        self._connection = connection
        self._is_closed = False
        self._drained = asyncio.Event()
        self._drained.set()
        # The transport calls these methods. Those of asyncssh do nothing.
        connection.pause_writing = self._pause  # type: ignore[method-assign]  # asyncssh has no other hook
        connection.resume_writing = self._resume  # type: ignore[method-assign]  # asyncssh has no other hook
        self._send_packet = connection.send_packet
        connection.send_packet = self._send_limited  # type: ignore[method-assign]  # asyncssh has no other hook

    @property
    def is_full(self) -> bool:
        """Whether new output has to wait until the peer has taken earlier output."""
        return not self._is_closed and (not self._drained.is_set() or self._exchanges_keys)

    @property
    def _exchanges_keys(self) -> bool:
        return bool(self._connection._deferred_packets)  # noqa: SLF001 (asyncssh has no accessor)

    async def wait(self) -> None:
        """Wait until the peer has taken earlier output, or the connection is closed."""
        while self.is_full:
            await self._drained.wait()
            if self._exchanges_keys:
                await asyncio.sleep(_KEY_EXCHANGE_SECONDS)

    def close(self) -> None:
        """End all waiting, because the connection is closed."""
        self._is_closed = True
        self._drained.set()

    def _send_limited(self, pkttype: int, *args: bytes, **options: Any) -> None:
        self._send_packet(pkttype, *args, **options)
        if len(self._connection._deferred_packets) > MOST_DEFERRED:  # noqa: SLF001 (asyncssh has no accessor)
            # The peer began a key exchange, does not finish it, and sends requests, of which each has a reply.
            self._connection.abort()

    def _pause(self) -> None:
        self._drained.clear()
        if (transport := self._connection._transport) is not None:  # noqa: SLF001 (asyncssh has no accessor)
            transport.pause_reading()

    def _resume(self) -> None:
        self._drained.set()
        if (transport := self._connection._transport) is not None:  # noqa: SLF001 (asyncssh has no accessor)
            transport.resume_reading()


def has_small_packets(channel: asyncssh.SSHTCPChannel[bytes] | asyncssh.SSHClientChannel[bytes]) -> bool:
    """Return whether the peer takes packets of an open channel only if they are smaller than `LEAST_PACKET`."""
    size: int = channel._send_pktsize  # noqa: SLF001 (asyncssh has no accessor)
    return size < LEAST_PACKET
