"""Entries of the kernel's connection tracking as a simulated host stores them."""

import socket

from events.values import Ipv4Address
from node_agent.aspects.ingress_rules import Connection

WORLD = Ipv4Address("198.51.100.1")


def outbound(ip: Ipv4Address) -> Connection:
    """Return a tracked connection that the slice with the address `ip` opened to an external address."""
    return Connection(socket.IPPROTO_UDP, ip, WORLD, 4000, WORLD, 4000, answered_to=ip)


def inbound(public: Ipv4Address, public_port: int, target: Ipv4Address, port: int) -> Connection:
    """Return a tracked connection from an external address to a public address, translated to the address and port of a
    slice.
    """
    tcp = socket.IPPROTO_TCP
    return Connection(tcp, WORLD, public, public_port, target, port, answered_to=WORLD)
