"""Connection tracking over netlink (linux/netfilter/nfnetlink_conntrack.h), in the kernel's own words.

A host may track a quarter of a million connections, which an outsider can make of any open port, and all of them are
listed by each look at a slice that has ways in, and on the road that closes one. So they stay as they were received,
and only those that contain a slice's address are read, the two tuples of each: pyroute2 takes most of a millisecond for
one. It also wants the state of every TCP connection, which the kernel leaves out where it handed one over to a flow
table or a card.
"""

import os
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from errno import ENOENT
from time import monotonic
from typing import Final, NamedTuple

from events.values import Ipv4Address
from node_agent.mappings import Connection

_NETLINK_NETFILTER: Final = 12
_GET, _DELETE = 0x101, 0x102
_REQUEST_AND_DUMP, _REQUEST_AND_ACK = 0x301, 0x5
_ERROR, _DONE = 2, 3
_HEADER: Final = struct.Struct("=IHHII")
"""Length, type, flags, sequence, port (netlink(7))."""
_FAMILY: Final = struct.pack("=BBH", socket.AF_INET, 0, 0)
_ATTRIBUTE: Final = struct.Struct("=HH")
_TYPE: Final = 0x3FFF
_ORIGINAL, _REPLY = 1, 2
_IP, _PROTOCOL = 1, 2
_SOURCE, _DESTINATION = 1, 2
_NUMBER, _SOURCE_PORT, _DESTINATION_PORT = 1, 2, 3
_CHUNK: Final = 1 << 17
Message = tuple[int, bytes]
"""Its type and its body."""


class Tracked(NamedTuple):
    """A connection, and its original tuple as the kernel wrote it, by which it is forgotten."""

    connection: Connection
    original: bytes


class Refused(Exception):
    """The kernel's answer was no."""


def listed(deadline: float) -> tuple[bytes, ...]:
    """All IPv4 connections of this network namespace, unread, within so many seconds. Raises `OSError`, `Refused`."""
    with _netlink(deadline) as netlink:
        netlink.ask(_GET, _REQUEST_AND_DUMP, b"")
        return tuple(tracked_in(netlink.answers()))


def its(ip: Ipv4Address, among: Iterable[bytes]) -> Iterator[Tracked]:
    """Those with the address on any side, read."""
    own = socket.inet_aton(ip)
    # Its bytes may also stand there by chance, as a mark or a counter.
    return (
        each for each in map(_tracked, (each for each in among if own in each)) if each.connection.has(ip)
    )


def forget(doomed: Iterable[bytes], deadline: float) -> None:
    """Stop tracking these original tuples; one that has ended by itself counts as done. Raises as `listed`."""
    with _netlink(deadline) as netlink:
        for original in doomed:
            netlink.ask(_DELETE, _REQUEST_AND_ACK, _attribute(_ORIGINAL, original))
            for _ in netlink.answers(fine=ENOENT):
                pass


def tracked_in(messages: Iterable[Message]) -> Iterator[bytes]:
    """The IPv4 connections among them, unread."""
    return (body for kind, body in messages if kind == _GET - 1 and body[0] == socket.AF_INET)


def _tracked(body: bytes) -> Tracked:
    found = _attributes(body[len(_FAMILY) :])
    original = found[_ORIGINAL]
    return Tracked(_connection(_attributes(original), _attributes(found[_REPLY])), original)


def _connection(asked: Mapping[int, bytes], answered: Mapping[int, bytes]) -> Connection:
    """The answers' side is what translation made of the questions'."""
    source, destination = _attributes(asked[_IP]), _attributes(answered[_IP])
    how, back = _attributes(asked[_PROTOCOL]), _attributes(answered[_PROTOCOL])
    return Connection(
        protocol=how[_NUMBER][0],
        source=_address(source[_SOURCE]),
        destination=_address(source[_DESTINATION]),
        destination_port=_port(how.get(_DESTINATION_PORT)),
        target=_address(destination[_SOURCE]),
        target_port=_port(back.get(_SOURCE_PORT)),
        answered_to=_address(destination[_DESTINATION]),
    )


def _address(packed: bytes) -> Ipv4Address:
    return Ipv4Address(socket.inet_ntoa(packed))


def _port(packed: bytes | None) -> int | None:
    return None if packed is None else int.from_bytes(packed)


class _Netlink:
    def __init__(self, wire: socket.socket, ends: float) -> None:
        self._wire, self._ends = wire, ends

    def ask(self, kind: int, flags: int, attributes: bytes) -> None:
        body = _FAMILY + attributes
        self._wire.send(_HEADER.pack(_HEADER.size + len(body), kind, flags, 0, 0) + body)

    def answers(self, fine: int = 0) -> Iterator[Message]:
        """What is received, until the kernel says that this is all; an error of this number is no other end."""
        while True:
            if (left := self._ends - monotonic()) <= 0:
                raise TimeoutError("timed out")
            self._wire.settimeout(left)
            for kind, body in messages_in(self._wire.recv(_CHUNK)):
                if kind in {_ERROR, _DONE}:
                    code = -struct.unpack_from("=i", body)[0]
                    if code not in {0, fine}:
                        raise Refused(os.strerror(code))
                    return
                yield kind, body


@contextmanager
def _netlink(deadline: float) -> Iterator[_Netlink]:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as wire:
        yield _Netlink(wire, monotonic() + deadline)


def messages_in(chunk: bytes) -> Iterator[Message]:
    """What was received at once, each without its frame."""
    at = 0
    while at < len(chunk):
        length, kind, *_ = _HEADER.unpack_from(chunk, at)
        yield kind, chunk[at + _HEADER.size : at + length]
        at += _padded(length)


def _attributes(body: bytes) -> dict[int, bytes]:
    found, at = dict[int, bytes](), 0
    while at < len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, at)
        found[kind & _TYPE] = body[at + _ATTRIBUTE.size : at + length]
        at += _padded(length)
    return found


def _attribute(kind: int, content: bytes) -> bytes:
    nested = 0x8000
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(content), kind | nested) + content


def _padded(length: int) -> int:
    return (length + 3) & ~3
