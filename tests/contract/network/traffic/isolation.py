"""Attacks from a slice to forbidden destinations: a neighbour slice, the host's services, and protocols other than
plain IPv4.
"""

from collections.abc import Callable, Iterator
from typing import Final

from scapy.layers.inet import UDP
from scapy.packet import Packet

from tests.contract.network.senders import ALICE
from tests.contract.network.slices import GATEWAY
from tests.contract.network.traffic.arrivals import (
    as_route,
    at_port,
    by_uplink,
)
from tests.contract.network.traffic.attacks import (
    ALL_NODES,
    MDNS,
    SERVICE,
    Attack,
    Victim,
    advertisement,
    bpdu,
    echo,
    ether,
    gateway,
    host,
    ipv6,
    lldp,
    neighbour,
    ping,
    tagged,
    to_all,
    to_many,
    udp,
)
from tests.contract.network.traffic.guards import (
    AROUND,
    AT_TAPS,
    ENTERING,
    INPUT,
    LEAVING,
    Removal,
    ipv6_enabled,
    loopback_routed,
    to_bob,
    to_gateway,
    without,
)
from tests.contract.network.traffic.scene import BOB, BRIDGE, GATEWAY_MAC, WORLD, Places
from tests.contract.network.traffic.wire import BROADCAST

_BRIDGES: Final = "01:80:c2:00:00:00"
_TAG: Final = {"vlan_tci": "0x1000/0x1000"}


Place = Callable[[Places], str]
ADDRESSES: Final[tuple[tuple[str, Victim, Place], ...]] = (
    ("at its address", "gateway", lambda _: GATEWAY),
    ("at its uplink", "host", lambda at: at.uplink),
    ("at its management link", "host", lambda at: at.management),
    ("loopback", "host", lambda _: "127.0.0.1"),
    ("at all addresses", "host", lambda _: "255.255.255.255"),
)


_any_ipv6 = {"ipv6": "", "dl_dst": ALL_NODES}
_to_all_nodes = ether(to=ALL_NODES)
_service = ipv6() / UDP(sport=4002, dport=SERVICE)

LINKS: Final = (
    neighbour(
        "east-west", "to the neighbour", ether(to=BOB.mac) / ping(ALICE.ip, BOB.ip), to_bob(dl_dst=BOB.mac)
    ),
    neighbour("east-west", "by broadcast", to_all(), to_bob(dl_dst=BROADCAST)),
    neighbour("east-west", "to a multicast group", to_many(), to_bob(dl_dst=MDNS)),
    neighbour(
        "hairpin", "to the neighbour", ether() / ping(ALICE.ip, BOB.ip), without(LEAVING), without(ENTERING)
    ),
    neighbour(
        "hairpin",
        "to a public port",
        ether() / udp(ALICE.ip, BOB.ip, 53),
        without(LEAVING),
        without(ENTERING),
    ),
    neighbour(
        "hairpin",
        "around the bridge",
        lambda at: ether(to=at.tap) / ping(ALICE.ip, BOB.ip),
        without(AROUND),
        without(ENTERING),
    ),
    neighbour("VLAN", "a tag", ether(to=BOB.mac) / tagged(7) / ping(ALICE.ip, BOB.ip), to_bob(**_TAG)),
    gateway("VLAN", "a tag", ether() / tagged(7) / ping(ALICE.ip, WORLD), to_gateway(**_TAG)),
    gateway("VLAN", "a priority", ether() / tagged(0, prio=5) / ping(ALICE.ip, WORLD), to_gateway(**_TAG)),
    gateway("VLAN", "a tag in a tag", ether() / tagged(7, 8) / ping(ALICE.ip, WORLD), to_gateway(**_TAG)),
    host(
        "VLAN",
        "a priority",
        ether() / tagged(0, prio=5) / udp(ALICE.ip, WORLD),
        by_uplink,
        to_gateway(**_TAG),
    ),
    neighbour("BPDU", "of a root", bpdu(), to_bob(dl_dst=_BRIDGES)),
    gateway("BPDU", "of a root", bpdu(), to_gateway(dl_dst=_BRIDGES)),
    neighbour("other protocol", "LLDP", lldp(BOB.mac), to_bob(dl_type="0x88cc")),
    gateway("other protocol", "LLDP", lldp(), to_gateway(dl_type="0x88cc")),
    neighbour("router advertisement", "by broadcast", _to_all_nodes / advertisement(), to_bob(**_any_ipv6)),
    gateway("router advertisement", "by broadcast", _to_all_nodes / advertisement(), to_gateway(**_any_ipv6)),
    host(
        "router advertisement",
        "by broadcast",
        _to_all_nodes / advertisement(),
        as_route,
        to_gateway(**_any_ipv6),
        without(INPUT),
    ),
    host(
        "router advertisement",
        "at the tap",
        lambda at: ether(to=at.tap) / advertisement(),
        as_route,
        ipv6_enabled,
        without(AT_TAPS),
    ),
    neighbour("other IPv6", "an echo", ether(to=BOB.mac) / echo(), to_bob(ipv6="")),
    gateway("other IPv6", "an echo", ether() / echo(), to_gateway(ipv6="")),
    host(
        "other IPv6",
        "to a port",
        _to_all_nodes / _service,
        at_port(SERVICE),
        to_gateway(**_any_ipv6),
        without(INPUT),
    ),
    host(
        "other IPv6",
        "to a port, at the tap",
        lambda at: ether(to=at.tap) / _service,
        at_port(SERVICE),
        ipv6_enabled,
        without(AT_TAPS),
    ),
)


def _ports() -> Iterator[Attack]:
    """Return attacks on services at each of the host's addresses, by each path from a slice to that address."""
    for what, victim, address in ADDRESSES:
        yield to_port(victim, what, address, lambda _: GATEWAY_MAC, without(INPUT), *_routed(what, BRIDGE))
        yield to_port(
            victim,
            f"{what}, by broadcast",
            address,
            lambda _: BROADCAST,
            to_gateway(dl_dst=BROADCAST),
            without(INPUT),
            *_routed(what, BRIDGE),
        )
        yield to_port(
            victim,
            f"{what}, at the tap",
            address,
            lambda at: at.tap,
            without(AT_TAPS),
            *_routed(what, ALICE.tap),
        )


def to_port(victim: Victim, what: str, address: Place, card: Place, *guards: Removal) -> Attack:
    def frame(at: Places) -> Packet:
        return ether(to=card(at)) / udp(ALICE.ip, address(at), SERVICE)

    return Attack("host port", victim, what, frame, at_port(SERVICE), guards)


def _routed(what: str, link: str) -> tuple[Removal, ...]:
    return (loopback_routed(link),) if what == "loopback" else ()


PORTS: Final = tuple(_ports())
