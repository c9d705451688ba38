"""Netlink in the kernel's own frames (netlink(7)): an answer stays as it was received until somebody reads it.

To decode a message takes a hundred times as long as to receive it, and of what a look lists most is somebody else's, or
just as it was at the last look.
"""

import os
import socket
import struct
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final

_HEADER: Final = struct.Struct("=IHHII")
"""Length, type, flags, sequence, port."""
_ATTRIBUTE: Final = struct.Struct("=HH")
_TYPE: Final = 0x3FFF
_NESTED: Final = 0x8000
_REQUEST_AND_ACK, _REQUEST_AND_DUMP = 0x5, 0x301
_INTERRUPTED: Final = 0x10
"""NLM_F_DUMP_INTR: what is listed changed meanwhile."""
_ERROR, _DONE = 2, 3
_CHUNK: Final = 1 << 17
Message = tuple[int, bytes]
"""Its type and its body."""


class Refused(Exception):
    """The kernel's answer was no."""


class Netlink:
    """A conversation over `wire` until the monotonic time `ends`. Raises `OSError`, `Refused`."""

    def __init__(self, wire: socket.socket, ends: float) -> None:
        self._wire, self._ends = wire, ends
        self._is_torn = False
        """Whether the kernel said of the last answer that it is of several moments."""

    def listed(self, kind: int, question: bytes, *, fine: int = 0) -> tuple[Message, ...]:
        """Return all that the kernel lists, listed again where the kernel reports that something changed meanwhile.

        An error of the number `fine` counts as an empty list.
        """
        while True:
            self._ask(kind, _REQUEST_AND_DUMP, question)
            messages = tuple(self._answers(fine))
            if not self._is_torn:
                return messages

    def got(self, kind: int, question: bytes, *, fine: int = 0) -> tuple[Message, ...]:
        """The answer about one thing; an error of the number `fine` counts as an empty one."""
        self._ask(kind, _REQUEST_AND_ACK, question)
        return tuple(self._answers(fine))

    def tell(self, kind: int, body: bytes, *, fine: int, flags: int = 0) -> None:
        """Have the kernel do it; an error of the number `fine` counts as done."""
        self._ask(kind, _REQUEST_AND_ACK | flags, body)
        for _ in self._answers(fine):
            pass

    def _ask(self, kind: int, flags: int, body: bytes) -> None:
        self._wire.send(framed(body, kind, flags))

    def _answers(self, fine: int = 0) -> Iterator[Message]:
        """What is received, until the kernel says that this is all; an error of this number is no other end."""
        self._is_torn = False
        while True:
            if (left := self._ends - monotonic()) <= 0:
                raise TimeoutError("timed out")
            self._wire.settimeout(left)
            for kind, flags, body in _messages_in(self._wire.recv(_CHUNK)):
                self._is_torn |= bool(flags & _INTERRUPTED)
                if kind in {_ERROR, _DONE}:
                    code = -struct.unpack_from("=i", body)[0]
                    if code not in {0, fine}:
                        raise Refused(os.strerror(code))
                    return
                yield kind, body


def listed(
    protocol: int, kind: int, question: bytes, deadline: float, *, fine: int = 0
) -> tuple[Message, ...]:
    """`Netlink.listed`, within so many seconds. Raises `OSError`, `Refused`."""
    with connected(protocol, deadline) as netlink:
        return netlink.listed(kind, question, fine=fine)


@contextmanager
def connected(protocol: int, deadline: float) -> Iterator[Netlink]:
    """With the kernel, in the network namespace of whoever asks."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as wire:
        yield Netlink(wire, monotonic() + deadline)


def framed(body: bytes, kind: int = 0, flags: int = 0) -> bytes:
    """A message as it goes over the wire."""
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, 0, 0) + body


def unframed(message: bytes) -> bytes:
    """Its body."""
    return message[_HEADER.size :]


def messages_in(chunk: bytes) -> Iterator[Message]:
    """What was received at once."""
    return ((kind, body) for kind, _, body in _messages_in(chunk))


def _messages_in(chunk: bytes) -> Iterator[tuple[int, int, bytes]]:
    at = 0
    while at < len(chunk):
        length, kind, flags, *_ = _HEADER.unpack_from(chunk, at)
        yield kind, flags, chunk[at + _HEADER.size : at + length]
        at += _padded(length)


def attributes(body: bytes, begins: int = 0) -> dict[int, bytes]:
    """Return the attributes of a body by their types; they begin at the offset `begins`."""
    return {kind: body[at + _ATTRIBUTE.size : at + length] for kind, at, length in _attributes(body, begins)}


def values(body: bytes) -> list[bytes]:
    """What attributes hold that may all be of one type: the elements of a list."""
    return [body[at + _ATTRIBUTE.size : at + length] for _, at, length in _attributes(body, 0)]


def without(kinds: Collection[int], body: bytes, begins: int) -> bytes:
    """A body whose attributes begin there, but for those of these types."""
    found = _attributes(body, begins)
    kept = (body[at : at + _padded(length)] for kind, at, length in found if kind not in kinds)
    return b"".join((body[:begins], *kept))


def _attributes(body: bytes, at: int) -> Iterator[tuple[int, int, int]]:
    """Their types, where they stand and how long they are."""
    while at < len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, at)
        yield kind & _TYPE, at, length
        at += _padded(length)


def nested(kind: int, content: bytes) -> bytes:
    """An attribute whose content is attributes."""
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(content), kind | _NESTED) + content


def attribute(kind: int, content: bytes) -> bytes:
    """An attribute with its padding."""
    length = _ATTRIBUTE.size + len(content)
    return _ATTRIBUTE.pack(length, kind) + content + bytes(_padded(length) - length)


def _padded(length: int) -> int:
    return (length + 3) & ~3
