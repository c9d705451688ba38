"""Every kind of attack of P18 by its victim, with what keeps it from arriving.

`neighbour`: Bob's port, and his lease. `gateway`: the bridge's own device with the gateway's address, and its table of
who is where. `host`: its services on all its addresses, its other links and what leaves by them, and its end of Alice's
tap, whose frames the host's own stack sees as well with the userspace datapath.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from scapy.layers.inet import UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from tests.contract.network.arrivals import (
    BOBS_ID,
    Arrival,
    answered_arp,
    as_lost_lease,
    as_route,
    at_gateway,
    at_neighbour,
    at_port,
    by_management,
    by_uplink,
    in_arp_table,
)
from tests.contract.network.attacks import (
    ALL_NODES,
    SERVICE,
    Attack,
    Frame,
    Kind,
    Victim,
    advertisement,
    asked,
    bpdu,
    claim,
    echo,
    ether,
    ipv6,
    lldp,
    of_bob,
    ping,
    solicitation,
    tagged,
    udp,
    unicast,
)
from tests.contract.network.guards import (
    AT_TAPS,
    ENTERING,
    INPUT,
    LEAVING,
    Removal,
    any_client,
    arp_heard,
    ipv6_heard,
    leases_by_client_id,
    loopback_routed,
    routes_forgotten,
    to_bob,
    to_gateway,
    without,
    without_flow,
)
from tests.contract.network.scene import BOB, BRIDGE, DOOR, WORLD, Places
from tests.contract.network.senders import ALICE
from tests.contract.network.slices import GATEWAY
from tests.contract.network.wire import BROADCAST

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

_ALL: Final = "10.100.1.255"
_MDNS: Final = "01:00:5e:00:00:fb"
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


def neighbour(
    kind: Kind, what: str, frame: Frame, *guards: Removal, arrival: Arrival = at_neighbour
) -> Attack:
    return Attack(kind, "neighbour", what, frame, arrival, guards)


def gateway(kind: Kind, what: str, frame: Frame, *guards: Removal, arrival: Arrival = at_gateway) -> Attack:
    return Attack(kind, "gateway", what, frame, arrival, guards)


def host(kind: Kind, what: str, frame: Frame, arrival: Arrival, *guards: Removal) -> Attack:
    return Attack(kind, "host", what, frame, arrival, guards)


def believed(what: str, frame: Frame, *guards: Removal) -> Attack:
    return gateway("ARP", what, frame, *guards, arrival=in_arp_table)


def leased(kind: Kind, what: str, frame: Frame, *guards: Removal) -> Attack:
    return neighbour(kind, what, frame, *guards, arrival=as_lost_lease)


_from_bob = to_gateway(dl_src=BOB.mac)
_answer = claim(GATEWAY, by=ALICE.mac, target=BOB.ip)
_gratuitous = ether(to=BROADCAST) / claim(BOB.ip, by=ALICE.mac, target=BOB.ip, op=1)

SPOOFING: Final = (
    neighbour("ARP", "the gateway's address", ether(to=BOB.mac) / _answer, to_bob(arp="", arp_spa=GATEWAY)),
    neighbour("ARP", "the same, to all", ether(to=BROADCAST) / _answer, to_bob(arp="", arp_spa=GATEWAY)),
    neighbour("ARP", "a question", asked(BOB.ip), to_bob(arp="", arp_tpa=BOB.ip)),
    believed("Bob's address", ether() / claim(BOB.ip, by=ALICE.mac), to_gateway(arp="", arp_spa=BOB.ip)),
    believed("the same, unasked and to all", _gratuitous, to_gateway(arp="", arp_spa=BOB.ip)),
    gateway("ARP", "its own", ether() / claim(GATEWAY, by=ALICE.mac), to_gateway(arp="", arp_spa=GATEWAY)),
    gateway("ARP", "in Bob's name", ether() / claim(BOB.ip, by=BOB.mac), to_gateway(arp="", arp_sha=BOB.mac)),
    gateway(
        "ARP", "at Bob's card", ether() / claim(ALICE.ip, by=BOB.mac), to_gateway(arp="", arp_sha=BOB.mac)
    ),
    host("ARP", "where its uplink is", lambda at: asked(at.uplink), answered_arp, to_gateway(arp="")),
    host("ARP", "the same, at the tap", lambda at: asked(at.uplink, to=at.tap), answered_arp, arp_heard),
    neighbour(
        "MAC", "the gateway's", Ether(src=DOOR, dst=BOB.mac) / ping(ALICE.ip, BOB.ip), to_bob(dl_src=DOOR)
    ),
    gateway("MAC", "Bob's", ether(BOB.mac) / ping(ALICE.ip, GATEWAY), _from_bob),
    gateway("MAC", "its own", ether(DOOR) / ping(ALICE.ip, GATEWAY), to_gateway(dl_src=DOOR)),
    host("MAC", "Bob's", ether(BOB.mac) / udp(ALICE.ip, WORLD), by_uplink, _from_bob, without(LEAVING)),
    neighbour(
        "IP", "the gateway's", ether(to=BOB.mac) / ping(GATEWAY, BOB.ip), to_bob(ip="", nw_src=GATEWAY)
    ),
    gateway("IP", "Bob's", ether() / ping(BOB.ip, GATEWAY), to_gateway(ip="", nw_src=BOB.ip)),
    gateway("IP", "its own", ether() / ping(GATEWAY, WORLD), to_gateway(ip="", nw_src=GATEWAY)),
    gateway("IP", "to all", ether(to=BROADCAST) / ping(ALICE.ip, _ALL), to_gateway(dl_dst=BROADCAST)),
    gateway("IP", "to many", ether(to=_MDNS) / udp(ALICE.ip, "224.0.0.251", 5353), to_gateway(dl_dst=_MDNS)),
    *(
        host("IP", what, ether() / udp(ip, WORLD), by_uplink, to_gateway(ip="", nw_src=ip), without(LEAVING))
        for what, ip in (("Bob's", BOB.ip), ("nobody's", "203.0.113.9"))
    ),
    host(
        "IP",
        "to its managers",
        lambda at: ether() / udp(ALICE.ip, at.manager),
        by_management,
        without(LEAVING),
    ),
)

_offer = udp(ALICE.ip, "255.255.255.255", 68, of=67)
_to_server = ether() / udp(ALICE.ip, GATEWAY, 67, of=67)
_serves = {"udp": "", "tp_src": "67"}
_release = of_bob("release", ciaddr=BOB.ip, chaddr=BOB.mac)
_decline = of_bob("decline", requested_addr=BOB.ip, chaddr=BOB.mac)

DHCP: Final = (
    neighbour("DHCP server", "an offer to all", ether(to=BROADCAST) / _offer, to_bob(**_serves)),
    neighbour("DHCP server", "an offer to him", ether(to=BOB.mac) / _offer, to_bob(**_serves)),
    gateway("DHCP server", "as one to another", _to_server, without_flow(**_serves)),
    host(
        "DHCP server",
        "an offer to all",
        ether(to=BROADCAST) / _offer,
        at_port(68),
        to_gateway(**_serves),
        without(INPUT),
    ),
    leased("DHCP release", "of his card", _release, any_client),
    leased("DHCP release", "the same, from an address", unicast(_release), any_client),
    leased(
        "DHCP release", "by his id", of_bob("release", ciaddr=BOB.ip, client_id=BOBS_ID), leases_by_client_id
    ),
    leased("DHCP decline", "of his card", _decline, any_client),
    leased("DHCP decline", "the same, from an address", unicast(_decline), any_client),
    leased(
        "DHCP decline",
        "by his id",
        of_bob("decline", requested_addr=BOB.ip, client_id=BOBS_ID),
        leases_by_client_id,
    ),
)

_any_ipv6 = {"ipv6": "", "dl_dst": ALL_NODES}
_to_all_nodes = ether(to=ALL_NODES)
_service = ipv6() / UDP(sport=4002, dport=SERVICE)

BETWEEN_AND_BELOW: Final = (
    neighbour("east-west", "to him", ether(to=BOB.mac) / ping(ALICE.ip, BOB.ip), to_bob(dl_dst=BOB.mac)),
    neighbour("east-west", "to all", ether(to=BROADCAST) / ping(ALICE.ip, _ALL), to_bob(dl_dst=BROADCAST)),
    neighbour(
        "east-west", "to many", ether(to=_MDNS) / udp(ALICE.ip, "224.0.0.251", 5353), to_bob(dl_dst=_MDNS)
    ),
    neighbour("hairpin", "to him", ether() / ping(ALICE.ip, BOB.ip), without(LEAVING, ENTERING)),
    neighbour(
        "hairpin", "to a port in the open", ether() / udp(ALICE.ip, BOB.ip, 53), without(LEAVING, ENTERING)
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
    neighbour("router advertisement", "to all", _to_all_nodes / advertisement(), to_bob(**_any_ipv6)),
    gateway("router advertisement", "to all", _to_all_nodes / advertisement(), to_gateway(**_any_ipv6)),
    host(
        "router advertisement",
        "to all",
        _to_all_nodes / advertisement(),
        as_route,
        to_gateway(**_any_ipv6),
        without(INPUT),
        routes_forgotten,
    ),
    host(
        "router advertisement",
        "at the tap",
        lambda at: ether(to=at.tap) / advertisement(),
        as_route,
        ipv6_heard,
        without(AT_TAPS),
    ),
    neighbour("other IPv6", "an echo", ether(to=BOB.mac) / echo(), to_bob(ipv6="")),
    neighbour("other IPv6", "a solicitation", _to_all_nodes / solicitation(), to_bob(ipv6="")),
    gateway("other IPv6", "an echo", ether() / echo(), to_gateway(ipv6="")),
    gateway("other IPv6", "a solicitation", _to_all_nodes / solicitation(), to_gateway(ipv6="")),
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
        ipv6_heard,
        without(AT_TAPS),
    ),
)


def _ports() -> Iterator[Attack]:
    """Of the host at each of its addresses, by each road there."""
    for what, victim, address in ADDRESSES:
        yield to_port(victim, what, address, lambda _: DOOR, without(INPUT), *_routed(what, BRIDGE))
        yield to_port(
            victim,
            f"{what}, to all",
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


ATTACKS: Final = {attack.name: attack for attack in (*SPOOFING, *DHCP, *BETWEEN_AND_BELOW, *_ports())}
