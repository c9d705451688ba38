"""Netlink messages in the kernel's wire format (netlink(7)), which are decoded only when they are needed.

Decoding a message takes a hundred times as long as receiving it, and most objects that the kernel lists belong to other
programs or are unchanged since the previous snapshot.
"""

import os
import socket
import struct
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final

_HEADER: Final = struct.Struct("=IHHII")
"""Layout of a netlink message's header (struct nlmsghdr): length, type, flags, sequence number, port id."""
_ATTRIBUTE: Final = struct.Struct("=HH")
_TYPE: Final = 0x3FFF
_NESTED: Final = 0x8000
_REQUEST_AND_ACK, _REQUEST_AND_DUMP = 0x5, 0x301
_INTERRUPTED: Final = 0x10
"""Flag NLM_F_DUMP_INTR of a netlink reply: the listed objects changed during the listing."""
_ERROR, _DONE = 2, 3
_CHUNK: Final = 1 << 17
Message = tuple[int, bytes]
"""Type and body of a netlink message."""


class Refused(Exception):
    """The kernel refused a netlink request."""


class Netlink:
    """Netlink requests over the socket `wire` until the monotonic time `ends`.

    All methods raise `OSError` and `Refused`.
    """

    def __init__(self, wire: socket.socket, ends: float) -> None:
        self._wire, self._ends = wire, ends
        self._is_inconsistent = False
        """Whether the kernel marked the last listing as inconsistent."""

    def listed(self, kind: int, request: bytes, *, ignored_error: int = 0) -> tuple[Message, ...]:
        """Return the kernel's list of objects; repeat the listing if the kernel reports that objects changed meanwhile.

        The error number `ignored_error` counts as an empty list.
        """
        while True:
            self._send(kind, _REQUEST_AND_DUMP, request)
            messages = tuple(self._reply(ignored_error))
            if not self._is_inconsistent:
                return messages

    def get(self, kind: int, request: bytes, *, ignored_error: int = 0) -> tuple[Message, ...]:
        """Request one object from the kernel; the error number `ignored_error` counts as an empty result."""
        self._send(kind, _REQUEST_AND_ACK, request)
        return tuple(self._reply(ignored_error))

    def execute(self, kind: int, body: bytes, *, ignored_error: int, flags: int = 0) -> None:
        """Make the kernel execute a request; the error number `ignored_error` counts as success."""
        self._send(kind, _REQUEST_AND_ACK | flags, body)
        for _ in self._reply(ignored_error):
            pass

    def _send(self, kind: int, flags: int, body: bytes) -> None:
        self._wire.send(framed(body, kind, flags))

    def _reply(self, ignored_error: int = 0) -> Iterator[Message]:
        """Yield the messages of the kernel's reply. An error message with the number `ignored_error` ends the reply
        without an exception.
        """
        self._is_inconsistent = False
        while True:
            if (left := self._ends - monotonic()) <= 0:
                raise TimeoutError("the kernel did not reply to a netlink request in time")
            self._wire.settimeout(left)
            for kind, flags, body in _messages_in(self._wire.recv(_CHUNK)):
                self._is_inconsistent |= bool(flags & _INTERRUPTED)
                if kind in {_ERROR, _DONE}:
                    code = -struct.unpack_from("=i", body)[0]
                    if code not in {0, ignored_error}:
                        raise Refused(os.strerror(code))
                    return
                yield kind, body


def listed(
    protocol: int, kind: int, request: bytes, deadline: float, *, ignored_error: int = 0
) -> tuple[Message, ...]:
    """Return the kernel's list of objects, requested over a new netlink socket within `deadline` seconds.

    The request works like `Netlink.listed`. Raises `OSError`, `Refused`.
    """
    with connected(protocol, deadline) as netlink:
        return netlink.listed(kind, request, ignored_error=ignored_error)


@contextmanager
def connected(protocol: int, deadline: float) -> Iterator[Netlink]:
    """Open a netlink socket in the network namespace of the calling thread, during the `with` block.

    The deadline of all requests in the block together is `deadline` seconds.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as wire:
        yield Netlink(wire, monotonic() + deadline)


def framed(body: bytes, kind: int = 0, flags: int = 0) -> bytes:
    """Encode a netlink message: a header with its type `kind` and `flags`, followed by `body`."""
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, 0, 0) + body


def unframed(message: bytes) -> bytes:
    """Return the body of an encoded netlink message, without its header."""
    return message[_HEADER.size :]


def messages_in(chunk: bytes) -> Iterator[Message]:
    """Yield the netlink messages in the bytes that one `recv` returned."""
    return ((kind, body) for kind, _, body in _messages_in(chunk))


def _messages_in(chunk: bytes) -> Iterator[tuple[int, int, bytes]]:
    at = 0
    while at < len(chunk):
        length, kind, flags, *_ = _HEADER.unpack_from(chunk, at)
        yield kind, flags, chunk[at + _HEADER.size : at + length]
        at += _padded(length)


def attributes(body: bytes, begins: int = 0) -> dict[int, bytes]:
    """Return the values of the netlink attributes in a message body, by attribute type, from the offset `begins` on."""
    return {kind: body[at + _ATTRIBUTE.size : at + length] for kind, at, length in _attributes(body, begins)}


def values(body: bytes) -> list[bytes]:
    """Return the values of all netlink attributes in a message body, also if several attributes have the same type."""
    return [body[at + _ATTRIBUTE.size : at + length] for _, at, length in _attributes(body, 0)]


def without(kinds: Collection[int], body: bytes, begins: int) -> bytes:
    """Return a netlink message body without the attributes of the given types. Attributes begin at the offset
    `begins`.
    """
    found = _attributes(body, begins)
    kept = (body[at : at + _padded(length)] for kind, at, length in found if kind not in kinds)
    return b"".join((body[:begins], *kept))


def _attributes(body: bytes, at: int) -> Iterator[tuple[int, int, int]]:
    """Yield the type, offset and length of each netlink attribute in `body`, from the offset `at` on."""
    while at < len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, at)
        yield kind & _TYPE, at, length
        at += _padded(length)


def nested(kind: int, content: bytes) -> bytes:
    """Encode a netlink attribute of this kind with other encoded attributes as its content."""
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(content), kind | _NESTED) + content


def attribute(kind: int, content: bytes) -> bytes:
    """Encode a netlink attribute: length, kind, content, and zero bytes up to a multiple of four."""
    length = _ATTRIBUTE.size + len(content)
    return _ATTRIBUTE.pack(length, kind) + content + bytes(_padded(length) - length)


def _padded(length: int) -> int:
    return (length + 3) & ~3
