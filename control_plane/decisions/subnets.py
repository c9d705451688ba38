"""Choice of the subnet of a new node: the first free one, unless concurrent registrations compete for it.

Nodes that are registered concurrently see the same free subnets, and only one of them gets each subnet. A registration
that lost a race chooses again, by a hash of the node's name, among 64 times as many subnets after each lost race, so
that two registrations that collided rarely collide again.
"""

import ipaddress
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Final
from zlib import crc32

from control_plane.decisions.refusals import Conflict, Objection
from events.values import Ipv4Subnet, NodeId, ipv4_subnet

_WIDER: Final = 64


def free_subnet(
    node: NodeId, among: ipaddress.IPv4Network, held: Collection[str], lost_races: int
) -> Ipv4Subnet:
    """Choose a /24 subnet of the network `among` that is not in `held`. Raises `Conflict` if there is none."""
    free = [*islice((each for each in _subnets(among) if each not in held), _WIDER**lost_races)]
    if not free:
        raise Conflict(
            Objection(
                "no_subnet",
                f"every /24 subnet of {among} belongs to a node; extend the slice networks or remove a node",
            )
        )
    return ipv4_subnet(free[crc32(f"{node} {lost_races}".encode()) % len(free)])


def _subnets(among: ipaddress.IPv4Network) -> Iterator[str]:
    """Yield all /24 subnets of a network except the first. Integer arithmetic avoids creating thousands of
    `ipaddress` objects.
    """
    first, last = int(among.network_address), int(among.broadcast_address)
    for start in range(first + 256, last, 256):
        yield f"{start >> 24}.{start >> 16 & 255}.{start >> 8 & 255}.0/24"
