"""The rules of one way in from outside (ING-2), and what connections it stands for.

    mapping   where it goes: what comes to the public address is translated to the slice's
    mapped    who may: each packet of a connection that was translated, both ways, passes by a rule of its mapping alone

Every packet is asked, not only a connection's first. So a connection dies in the transaction that deletes its mapping's
rules, whatever the kernel remembers of it, and a source that is no longer allowed is cut off at once.

A slice of the same node comes in by the public address as anybody does (hairpin): it passes the same rule, and the node
has it appear as the gateway. Sources are compared with its own address, which is private.
"""

import ipaddress
import socket
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, assert_never

from events.values import IngressId, InvalidValue, Ipv4Address, Ipv4Subnet, ingress_id
from node_agent.reaching import PROBE_ADDRESS
from node_agent.rules import (
    ACCEPT,
    MAPPED,
    MAPPING,
    Expression,
    Rule,
    dnat,
    field,
    match,
    meta,
    prefix,
    rule,
    tracked,
)
from tasks.orders import AddressMapping, Mapping, PortMapping

_NUMBERS: Final = {"tcp": socket.IPPROTO_TCP, "udp": socket.IPPROTO_UDP}


@dataclass(frozen=True, slots=True)
class Connection:
    """A tracked connection (conntrack(8)): where it came from, where it was sent, and where it was translated to.

    `protocol` is a number (IANA); ports are None where the protocol has none. A connection that nobody translated has
    the `target` that it was sent to.
    """

    protocol: int
    source: Ipv4Address
    destination: Ipv4Address
    destination_port: int | None
    target: Ipv4Address
    target_port: int | None
    answered_to: Ipv4Address
    """Whom the target answers: the source, or the host in its place."""

    def comes_in_to(self, ip: Ipv4Address) -> bool:
        """Whether it was sent elsewhere and translated to this target."""
        return self.target == ip != self.destination

    def has(self, ip: Ipv4Address) -> bool:
        """Whether the address is on any side of it."""
        return ip in (self.source, self.destination, self.target, self.answered_to)


def owner_of(tap: str, mapping: Mapping) -> str:
    """Whose rules they are, by their comment."""
    return f"{tap} {mapping.ingress_id}"


def ingress_in(owner: str) -> IngressId | None:
    """The ingress that rules say they are of; None where that is no ingress."""
    try:
        return ingress_id(owner.partition(" ")[2])
    except InvalidValue:
        return None


def rules_of(tap: str, target: Ipv4Address, mapping: Mapping) -> tuple[Rule, ...]:
    """Of a slice with this tap and address."""
    owner = owner_of(tap, mapping)
    arrives, goes, passes = _matched(target, mapping)
    sources = [tracked("original", "ip saddr", _host_or_network(each)) for each in mapping.sources]
    return (
        rule("inet", MAPPING, owner, match(field("ip", "daddr"), mapping.public_address), *arrives, goes),
        *(rule("inet", MAPPED, owner, *passes, *source, ACCEPT) for source in ([each] for each in sources)),
        *(() if sources else (rule("inet", MAPPED, owner, *passes, ACCEPT),)),
    )


def _matched(
    target: Ipv4Address, mapping: Mapping
) -> tuple[tuple[Expression, ...], Expression, tuple[Expression, ...]]:
    """What arrives for the mapping, where it goes, and what passes by it from then on."""
    ends = (
        tracked("original", "ip daddr", mapping.public_address),
        tracked("reply", "ip saddr", target),
    )
    match mapping:
        case PortMapping(protocol=protocol, public_port=public_port, port=port):
            arrives = (match(field(protocol, "dport"), public_port),)
            ports = (
                tracked("original", "proto-dst", public_port),
                tracked("reply", "proto-src", port),
            )
            return arrives, dnat(target, port), (meta("l4proto", protocol), *ends, *ports)
        case AddressMapping():
            return (), dnat(target), ends
        case _:
            assert_never(mapping)


def _host_or_network(network: str) -> object:
    """As nftables lists it."""
    address, _, length = network.partition("/")
    return address if length == "32" else prefix(network)


def permits(mapping: Mapping, target: Ipv4Address, connection: Connection) -> bool:
    """Whether a connection came in by this mapping, from a source that is allowed, as the agent's own probe is."""
    ends = (connection.destination, connection.target) == (mapping.public_address, target)
    return ends and _is_of_port(mapping, connection) and _is_allowed(connection.source, mapping.sources)


def _is_of_port(mapping: Mapping, connection: Connection) -> bool:
    match mapping:
        case PortMapping(protocol=protocol, public_port=public_port, port=port):
            ports = (connection.destination_port, connection.target_port)
            return (connection.protocol, ports) == (_NUMBERS[protocol], (public_port, port))
        case AddressMapping():
            return True
        case _:
            assert_never(mapping)


def _is_allowed(source: Ipv4Address, sources: Collection[Ipv4Subnet]) -> bool:
    address = ipaddress.IPv4Address(source)
    return (
        not sources
        or source == PROBE_ADDRESS
        or any(address in ipaddress.IPv4Network(each) for each in sources)
    )
