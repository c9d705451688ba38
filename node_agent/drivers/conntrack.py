"""Connection tracking over netlink (linux/netfilter/nfnetlink_conntrack.h), in the kernel's own words.

A host may track a quarter of a million connections, which an outsider can make of any open port, and all of them are
listed by each look at a slice that has ways in, and on the road that closes one. So they stay as they were received,
and only those that contain a slice's address are read, the two tuples of each: pyroute2 takes most of a millisecond for
one. It also wants the state of every TCP connection, which the kernel leaves out where it handed one over to a flow
table or a card.
"""

import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from errno import ENOENT
from typing import Final, NamedTuple

from events.values import Ipv4Address
from node_agent.drivers.netlink import Message, attribute, attributes, connected, listed, nested
from node_agent.mappings import Connection

_NETLINK_NETFILTER: Final = 12
_GET, _DELETE = 0x101, 0x102
_FAMILY: Final = struct.pack("=BBH", socket.AF_INET, 0, 0)
_ORIGINAL, _REPLY = 1, 2
_IP, _PROTOCOL = 1, 2
_SOURCE, _DESTINATION = 1, 2
_NUMBER, _SOURCE_PORT, _DESTINATION_PORT = 1, 2, 3


class Tracked(NamedTuple):
    """A connection, and its original tuple as the kernel wrote it, by which it is forgotten."""

    connection: Connection
    original: bytes


def tracked(deadline: float) -> tuple[bytes, ...]:
    """All IPv4 connections of this network namespace, unread, within so many seconds. Raises `OSError`, `Refused`."""
    return tuple(tracked_in(listed(_NETLINK_NETFILTER, _GET, _FAMILY, deadline)))


def its(ip: Ipv4Address, among: Iterable[bytes]) -> Iterator[Tracked]:
    """Those with the address on any side, read."""
    own = socket.inet_aton(ip)
    # Its bytes may also stand there by chance, as a mark or a counter.
    return (
        each for each in map(_tracked, (each for each in among if own in each)) if each.connection.has(ip)
    )


def forget(doomed: Iterable[bytes], deadline: float) -> None:
    """Stop tracking these original tuples; one that has ended by itself counts as done. Raises as `tracked`."""
    with connected(_NETLINK_NETFILTER, deadline) as netlink:
        for original in doomed:
            netlink.tell(_DELETE, _FAMILY + nested(_ORIGINAL, original), fine=ENOENT)


def find(original: bytes, deadline: float) -> Connection | None:
    """The connection with this original tuple. Raises as `tracked`."""
    with connected(_NETLINK_NETFILTER, deadline) as netlink:
        found = netlink.got(_GET, _FAMILY + nested(_ORIGINAL, original), fine=ENOENT)
    return next((_tracked(each).connection for each in tracked_in(found)), None)


def tcp_tuple(source: tuple[Ipv4Address, int], destination: tuple[Ipv4Address, int]) -> bytes:
    """The original tuple of a TCP connection between these addresses and ports."""
    ends = attribute(_SOURCE, socket.inet_aton(source[0])) + attribute(
        _DESTINATION, socket.inet_aton(destination[0])
    )
    ports = attribute(_SOURCE_PORT, struct.pack("!H", source[1])) + attribute(
        _DESTINATION_PORT, struct.pack("!H", destination[1])
    )
    number = attribute(_NUMBER, bytes([socket.IPPROTO_TCP]))
    return nested(_IP, ends) + nested(_PROTOCOL, number + ports)


def tracked_in(messages: Iterable[Message]) -> Iterator[bytes]:
    """The IPv4 connections among them, unread."""
    return (body for kind, body in messages if kind == _GET - 1 and body[0] == socket.AF_INET)


def _tracked(body: bytes) -> Tracked:
    found = attributes(body[len(_FAMILY) :])
    original = found[_ORIGINAL]
    return Tracked(_connection(attributes(original), attributes(found[_REPLY])), original)


def _connection(asked: Mapping[int, bytes], answered: Mapping[int, bytes]) -> Connection:
    """The answers' side is what translation made of the questions'."""
    source, destination = attributes(asked[_IP]), attributes(answered[_IP])
    how, back = attributes(asked[_PROTOCOL]), attributes(answered[_PROTOCOL])
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
