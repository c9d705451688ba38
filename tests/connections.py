"""Tracked connections for hosts that exist in memory."""

import socket

from events.values import Ipv4Address
from node_agent.mappings import Connection

WORLD = Ipv4Address("198.51.100.1")


def outbound(ip: Ipv4Address) -> Connection:
    """One that `ip` made with the world."""
    return Connection(socket.IPPROTO_UDP, ip, WORLD, 4000, WORLD, 4000, answered_to=ip)


def inbound(public: Ipv4Address, public_port: int, target: Ipv4Address, port: int) -> Connection:
    """One that the world made with a public address, which was translated."""
    tcp = socket.IPPROTO_TCP
    return Connection(tcp, WORLD, public, public_port, target, port, answered_to=WORLD)
