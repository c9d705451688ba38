"""Which subnet a new host gets: the first that is free, unless others want it at the same moment.

Hosts that are admitted together see the same ones free, and only one of them gets each. Who lost a race chooses again,
by his own name and among ever more of them, so that two who met will hardly meet again, however many there are.
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
    """A /24 of `among` that nobody holds. Raises `Conflict` when there is none."""
    free = [*islice((each for each in _subnets(among) if each not in held), _WIDER**lost_races)]
    if not free:
        raise Conflict(Objection("no_subnet", f"every /24 of {among} belongs to a node"))
    return ipv4_subnet(free[crc32(f"{node} {lost_races}".encode()) % len(free)])


def _subnets(among: ipaddress.IPv4Network) -> Iterator[str]:
    """All but the first. Written by hand: thousands of network objects would be made for each host."""
    first, last = int(among.network_address), int(among.broadcast_address)
    for start in range(first + 256, last, 256):
        yield f"{start >> 24}.{start >> 16 & 255}.{start >> 8 & 255}.0/24"
