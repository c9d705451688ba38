"""The packet filter rules of one ingress rule (ING-2), and the connections that it permits.

    chain mapping   translates packets to the public address so that they go to the slice
    chain mapped    permits translated connections: each packet, in both directions, needs a rule of its ingress

The filter checks every packet, and not only the first one of a connection. So a connection ends in the transaction that
deletes the rules of its ingress, whatever conntrack stores, and a source that is no longer allowed is cut off at once.

A slice of the same node uses the public address as any outside client does (hairpin): it passes the same rule, and the
node masquerades it as the gateway. The allowed sources of the rule are compared with the private address of the slice
that sends.
"""

import ipaddress
import socket
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, assert_never

from events.values import IngressId, InvalidValue, Ipv4Address, Ipv4Subnet, ingress_id
from node_agent.host.reachability import PROBE_ADDRESS
from node_agent.packets.rules import (
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
    """A tracked connection (conntrack(8)): its source, its original destination, and its translated `target`.

    `protocol` is a number (IANA); ports are None if the protocol has none. If a connection is not translated, `target`
    is equal to `destination`.
    """

    protocol: int
    source: Ipv4Address
    destination: Ipv4Address
    destination_port: int | None
    target: Ipv4Address
    target_port: int | None
    answered_to: Ipv4Address
    """The address to which the target replies: the source, or the host if it masquerades the source."""

    def comes_in_to(self, ip: Ipv4Address) -> bool:
        """Whether the connection was sent to another address and translated to the address `ip`."""
        return self.target == ip != self.destination

    def has(self, ip: Ipv4Address) -> bool:
        """Whether the address is an endpoint of the connection, before or after translation."""
        return ip in (self.source, self.destination, self.target, self.answered_to)


def owner_of(tap: str, mapping: Mapping) -> str:
    """Return the owner in the comments of an ingress's nftables rules: the slot's tap and the ingress id."""
    return f"{tap} {mapping.ingress_id}"


def ingress_in(owner: str) -> IngressId | None:
    """Return the ingress id in the owner of an nftables rule, or None if the owner contains none."""
    try:
        return ingress_id(owner.partition(" ")[2])
    except InvalidValue:
        return None


def rules_of(tap: str, target: Ipv4Address, mapping: Mapping) -> tuple[Rule, ...]:
    """Return the nftables rules of one ingress to the slice with this tap and address."""
    owner = owner_of(tap, mapping)
    incoming, translation, permitted = _matched(target, mapping)
    sources = [tracked("original", "ip saddr", _host_or_network(each)) for each in mapping.sources]
    return (
        rule(
            "inet",
            MAPPING,
            owner,
            match(field("ip", "daddr"), mapping.public_address),
            *incoming,
            translation,
        ),
        *(
            rule("inet", MAPPED, owner, *permitted, *source, ACCEPT)
            for source in ([each] for each in sources)
        ),
        *(() if sources else (rule("inet", MAPPED, owner, *permitted, ACCEPT),)),
    )


def _matched(
    target: Ipv4Address, mapping: Mapping
) -> tuple[tuple[Expression, ...], Expression, tuple[Expression, ...]]:
    """Return three parts of an ingress's nftables rules: the conditions of packets to translate, the translation, and
    the conditions of packets to permit.
    """
    ends = (
        tracked("original", "ip daddr", mapping.public_address),
        tracked("reply", "ip saddr", target),
    )
    match mapping:
        case PortMapping(protocol=protocol, public_port=public_port, port=port):
            incoming = (match(field(protocol, "dport"), public_port),)
            ports = (
                tracked("original", "proto-dst", public_port),
                tracked("reply", "proto-src", port),
            )
            return incoming, dnat(target, port), (meta("l4proto", protocol), *ends, *ports)
        case AddressMapping():
            return (), dnat(target), ends
        case _:
            assert_never(mapping)


def _host_or_network(network: str) -> object:
    """Return an address or prefix in the form in which nftables lists it."""
    address, _, length = network.partition("/")
    return address if length == "32" else prefix(network)


def permits(mapping: Mapping, target: Ipv4Address, connection: Connection) -> bool:
    """Whether an ingress permits a tracked connection.

    The connection must have entered by this ingress, from an allowed source or from the agent's own probe.
    """
    ends = (connection.destination, connection.target) == (mapping.public_address, target)
    return ends and _has_ports_of(mapping, connection) and _is_allowed(connection.source, mapping.sources)


def _has_ports_of(mapping: Mapping, connection: Connection) -> bool:
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
