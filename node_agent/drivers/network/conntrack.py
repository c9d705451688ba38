"""Connection tracking over netlink (linux/netfilter/nfnetlink_conntrack.h), decoded without pyroute2.

A host may track 250,000 connections, because any remote host can open connections to an open port. All of them are
listed whenever a slice with ingress rules is inspected and whenever an ingress rule is deleted. The messages are
therefore kept undecoded, and only the two tuples of connections that contain a slice's address are decoded: pyroute2
takes almost a millisecond for one connection. In addition, pyroute2 requires the state of every TCP connection, which
the kernel omits for a connection that it offloaded to a flow table or a network card.
"""

import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from errno import ENOENT
from typing import Final, NamedTuple

from events.values import Ipv4Address
from node_agent.aspects.ingress_rules import Connection
from node_agent.drivers.network.netlink import Message, attribute, attributes, connected, listed, nested

_NETLINK_NETFILTER: Final = 12
_GET, _DELETE = 0x101, 0x102
_FAMILY: Final = struct.pack("=BBH", socket.AF_INET, 0, 0)
_ORIGINAL, _REPLY = 1, 2
_IP, _PROTOCOL = 1, 2
_SOURCE, _DESTINATION = 1, 2
_NUMBER, _SOURCE_PORT, _DESTINATION_PORT = 1, 2, 3


class Tracked(NamedTuple):
    """A tracked connection, and its original tuple in the kernel's encoding, which identifies it for deletion."""

    connection: Connection
    original: bytes


def tracked(deadline: float) -> tuple[bytes, ...]:
    """Return all tracked IPv4 connections of this network namespace, undecoded. The deadline is in seconds.

    Raises `OSError`, `Refused`.
    """
    return tuple(ipv4_connections_in(listed(_NETLINK_NETFILTER, _GET, _FAMILY, deadline)))


def connections_with(ip: Ipv4Address, among: Iterable[bytes]) -> Iterator[Tracked]:
    """Decode those of the kernel's tracked connections that have the IPv4 address `ip` as one of their endpoints."""
    own = socket.inet_aton(ip)
    # The same four bytes may also occur by chance, for example in a mark or a counter.
    return (
        each for each in map(_tracked, (each for each in among if own in each)) if each.connection.has(ip)
    )


def delete(originals: Iterable[bytes], deadline: float) -> None:
    """Delete the connections with the given original tuples from connection tracking. Missing connections are ignored.

    Raises `OSError`, `Refused`.
    """
    with connected(_NETLINK_NETFILTER, deadline) as netlink:
        for original in originals:
            netlink.execute(_DELETE, _FAMILY + nested(_ORIGINAL, original), ignored_error=ENOENT)


def find(original: bytes, deadline: float) -> Connection | None:
    """Return the tracked connection with the original tuple `original`. Raises `OSError`, `Refused`."""
    with connected(_NETLINK_NETFILTER, deadline) as netlink:
        found = netlink.get(_GET, _FAMILY + nested(_ORIGINAL, original), ignored_error=ENOENT)
    return next((_tracked(each).connection for each in ipv4_connections_in(found)), None)


def tcp_tuple(source: tuple[Ipv4Address, int], destination: tuple[Ipv4Address, int]) -> bytes:
    """Encode the original tuple of a TCP connection between these addresses and ports."""
    ends = attribute(_SOURCE, socket.inet_aton(source[0])) + attribute(
        _DESTINATION, socket.inet_aton(destination[0])
    )
    ports = attribute(_SOURCE_PORT, struct.pack("!H", source[1])) + attribute(
        _DESTINATION_PORT, struct.pack("!H", destination[1])
    )
    number = attribute(_NUMBER, bytes([socket.IPPROTO_TCP]))
    return nested(_IP, ends) + nested(_PROTOCOL, number + ports)


def ipv4_connections_in(messages: Iterable[Message]) -> Iterator[bytes]:
    """Yield the encoded, tracked IPv4 connections in these netlink messages."""
    return (body for kind, body in messages if kind == _GET - 1 and body[0] == socket.AF_INET)


def _tracked(body: bytes) -> Tracked:
    found = attributes(body[len(_FAMILY) :])
    original = found[_ORIGINAL]
    return Tracked(_connection(attributes(original), attributes(found[_REPLY])), original)


def _connection(original: Mapping[int, bytes], reply: Mapping[int, bytes]) -> Connection:
    """Return a tracked connection from the tuples of both directions; the reply tuple has the translated addresses."""
    original_ip, reply_ip = attributes(original[_IP]), attributes(reply[_IP])
    original_protocol, reply_protocol = attributes(original[_PROTOCOL]), attributes(reply[_PROTOCOL])
    return Connection(
        protocol=original_protocol[_NUMBER][0],
        source=_address(original_ip[_SOURCE]),
        destination=_address(original_ip[_DESTINATION]),
        destination_port=_port(original_protocol.get(_DESTINATION_PORT)),
        target=_address(reply_ip[_SOURCE]),
        target_port=_port(reply_protocol.get(_SOURCE_PORT)),
        answered_to=_address(reply_ip[_DESTINATION]),
    )


def _address(packed: bytes) -> Ipv4Address:
    return Ipv4Address(socket.inet_ntoa(packed))


def _port(packed: bytes | None) -> int | None:
    return None if packed is None else int.from_bytes(packed)
