"""The class `Attack`, and builders of the frames that attacks send. `attack_table` lists the attacks."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import truediv
from typing import Final, Literal, TypeAlias

from scapy.layers.dhcp import BOOTP
from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.inet6 import (
    ICMPv6EchoRequest,
    ICMPv6ND_NA,
    ICMPv6ND_NS,
    ICMPv6ND_RA,
    ICMPv6NDOptDstLLAddr,
    ICMPv6NDOptPrefixInfo,
    IPv6,
)
from scapy.layers.l2 import ARP, LLC, STP, Dot1Q, Dot3, Ether
from scapy.packet import Packet, Padding, Raw

from tests.contract.network.senders import ALICE
from tests.contract.network.slices import GATEWAY
from tests.contract.network.traffic.arrivals import PREFIX, Arrival, at_gateway, at_neighbour
from tests.contract.network.traffic.guards import Removal
from tests.contract.network.traffic.scene import GATEWAY_MAC, Places, Scene, fresh_mark
from tests.contract.network.traffic.wire import BROADCAST

Victim = Literal["neighbour", "gateway", "host"]
Kind = Literal[
    "ARP",
    "MAC",
    "IP",
    "DHCP server",
    "DHCP release",
    "DHCP decline",
    "east-west",
    "hairpin",
    "VLAN",
    "router advertisement",
    "ND",
    "host port",
    "BPDU",
    "other IPv6",
    "other protocol",
]
Frame: TypeAlias = Packet | Callable[[Places], Packet]
"""A frame of an attack, or a function that builds the frame from the addresses of the node when it is sent."""

SERVICE: Final = 9999
"""A port of the host at which nothing from a slice may arrive."""
ALL_NODES: Final = "33:33:00:00:00:01"
"""Multicast MAC of the IPv6 address ff02::1 (all nodes)."""
MDNS: Final = "01:00:5e:00:00:fb"
"""Multicast MAC of the IPv4 address 224.0.0.251 (multicast DNS)."""


@dataclass(frozen=True)
class Attack:
    """One attack on a victim, and the `guards` that stop it. Each guard alone is sufficient to stop the attack."""

    kind: Kind
    victim: Victim
    what: str
    frame: Frame
    arrival: Arrival
    guards: tuple[Removal, ...]

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.victim}: {self.what}"

    def arrives(self, scene: Scene) -> bool:
        """Send the attack and a later, allowed frame. Return whether the attack arrived or took effect before that
        frame.
        """
        frame = self.frame if isinstance(self.frame, Packet) else self.frame(scene.places)
        mark = fresh_mark()
        return self.arrival(scene, _marked(frame, mark), mark)


def _marked(frame: Packet, mark: bytes) -> Packet:
    """Append the test's mark to a frame: to the payload of UDP and ICMP packets, and as padding to other frames."""
    return frame / (Raw(mark) if UDP in frame or ICMP in frame else Padding(mark))


def ether(mac: str = ALICE.mac, to: str = GATEWAY_MAC) -> Packet:
    return Ether(src=mac, dst=to)


def ping(source: str, target: str) -> Packet:
    return IP(src=source, dst=target) / ICMP(id=7)


def udp(source: str, target: str, to: int = 7, of: int = 4002) -> Packet:
    return IP(src=source, dst=target) / UDP(sport=of, dport=to)


def to_all() -> Packet:
    return ether(to=BROADCAST) / ping(ALICE.ip, "10.100.1.255")


def to_many() -> Packet:
    return ether(to=MDNS) / udp(ALICE.ip, "224.0.0.251", 5353)


def claim(ip: str, *, by: str, target: str = GATEWAY, op: int = 2) -> Packet:
    return ARP(op=op, hwsrc=by, psrc=ip, hwdst=GATEWAY_MAC, pdst=target)


def asked(target: str, to: str = BROADCAST) -> Packet:
    return ether(to=to) / ARP(op=1, hwsrc=ALICE.mac, psrc=ALICE.ip, pdst=target)


def ipv6(target: str = "ff02::1") -> Packet:
    return IPv6(src="fe80::bad", dst=target)


def advertisement() -> Packet:
    return ipv6() / ICMPv6ND_RA() / ICMPv6NDOptPrefixInfo(prefix=PREFIX, prefixlen=64)


def solicitation() -> Packet:
    return ipv6() / ICMPv6ND_NS(tgt="fe80::1")


def located(address: str, target: str = "ff02::1", *, asked: bool = False) -> Packet:
    """Return an ICMPv6 neighbour advertisement with the override flag, which claims this address for the network card
    of the attacking slice (RFC 4861, 4.4).
    """
    advertised = ICMPv6ND_NA(R=0, S=int(asked), O=1, tgt=address)
    return ipv6(target) / advertised / ICMPv6NDOptDstLLAddr(lladdr=ALICE.mac)


def echo() -> Packet:
    return ipv6("fe80::1") / ICMPv6EchoRequest()


def tagged(*tags: int, prio: int = 0) -> Packet:
    """Return Ethernet headers with these VLAN tags, beginning with the outermost tag. The tag 0 contains only a
    priority.
    """
    return reduce(truediv, (Dot1Q(vlan=tag, prio=prio) for tag in tags))


def bpdu() -> Packet:
    return Dot3(src=ALICE.mac, dst="01:80:c2:00:00:00") / LLC() / STP()


def lldp(to: str = GATEWAY_MAC) -> Packet:
    return Ether(src=ALICE.mac, dst=to, type=0x88CC)


def relayed(message: Packet, by: str) -> Packet:
    """Set the relay agent's address of a DHCP message. The DHCP server sends its answer to this address (RFC 2131,
    4.1).
    """
    message[BOOTP].giaddr = by
    return message


def unicast(message: Packet) -> Packet:
    """Return the DHCP message as a unicast packet to the server, as a client sends it that already has its address."""
    return ether() / IP(src=ALICE.ip, dst=GATEWAY) / message[UDP]


def neighbour(
    kind: Kind, what: str, frame: Frame, *guards: Removal, arrival: Arrival = at_neighbour
) -> Attack:
    return Attack(kind, "neighbour", what, frame, arrival, guards)


def gateway(kind: Kind, what: str, frame: Frame, *guards: Removal, arrival: Arrival = at_gateway) -> Attack:
    return Attack(kind, "gateway", what, frame, arrival, guards)


def host(kind: Kind, what: str, frame: Frame, arrival: Arrival, *guards: Removal) -> Attack:
    return Attack(kind, "host", what, frame, arrival, guards)
