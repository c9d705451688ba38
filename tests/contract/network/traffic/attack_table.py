"""Table of all kinds of attacks that promise P18 covers, by victim, with the guards that stop each attack.

The victim `neighbour` is the OVS port and the DHCP lease of the neighbour slice (Bob). `gateway` is the bridge's
internal device with the gateway's address, and its ARP table. `host` stands for the host's services on all its
addresses, its other links and the packets that leave by them, and its end of the attacking slice's tap. With the
userspace datapath, the host's own network stack receives the frames of the tap as well.
"""

from collections.abc import Mapping
from typing import Final

from tests.contract.network.traffic.attacks import Attack, Kind, Victim
from tests.contract.network.traffic.isolation import LINKS, PORTS
from tests.contract.network.traffic.spoofing import DHCP, DISCOVERY, SPOOFING

ATTACKS: Final[Mapping[str, Attack]] = {
    attack.name: attack for attack in (*SPOOFING, *DISCOVERY, *DHCP, *LINKS, *PORTS)
}

_LEASES: Final = "it is done to a lease, and leases are slices': a neighbour's, or one's own to give"
_BETWEEN: Final = "it is what one slice does to another"
NO_MEANING: Final[Mapping[tuple[Kind, Victim], str]] = {
    ("DHCP release", "gateway"): _LEASES,
    ("DHCP release", "host"): _LEASES,
    ("DHCP decline", "gateway"): _LEASES,
    ("DHCP decline", "host"): _LEASES,
    ("east-west", "gateway"): _BETWEEN,
    ("east-west", "host"): _BETWEEN,
    ("hairpin", "gateway"): _BETWEEN,
    ("hairpin", "host"): _BETWEEN,
    ("host port", "neighbour"): "a neighbour's ports are reached east-west or by hairpin",
    ("BPDU", "host"): "no bridge of the host has a slice's link as its port, and only IP is routed",
    ("other protocol", "host"): "its stack takes IP and ARP alone, and only IP is routed",
}
