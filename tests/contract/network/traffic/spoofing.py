"""Attacks that forge an identity by ARP, IPv6 neighbour discovery, MAC or IP address, and attacks as or through the
DHCP server.
"""

from functools import partial
from typing import Final

from scapy.layers.l2 import Ether

from tests.contract.network.senders import ALICE
from tests.contract.network.slices import GATEWAY
from tests.contract.network.traffic.arrivals import (
    BOBS_ID,
    BOBS_IPV6,
    answered_arp,
    as_answer,
    as_lost_lease,
    at_port,
    by_management,
    by_uplink,
    in_arp_table,
    in_neighbours,
)
from tests.contract.network.traffic.attacks import (
    ALL_NODES,
    MDNS,
    Attack,
    Frame,
    Kind,
    asked,
    claim,
    ether,
    gateway,
    host,
    located,
    neighbour,
    ping,
    relayed,
    solicitation,
    to_all,
    to_many,
    udp,
    unicast,
)
from tests.contract.network.traffic.guards import (
    AROUND,
    AT_TAPS,
    INPUT,
    LEAVING,
    Removal,
    any_client,
    arp_enabled,
    ipv6_enabled,
    leases_by_client_id,
    replies_as_sent,
    to_bob,
    to_gateway,
    without,
    without_flow,
)
from tests.contract.network.traffic.scene import BOB, BRIDGE, GATEWAY_MAC, WORLD
from tests.contract.network.traffic.wire import BROADCAST, dhcp


def overrides_arp(what: str, frame: Frame, *guards: Removal) -> Attack:
    return gateway("ARP", what, frame, *guards, arrival=in_arp_table)


def leased(kind: Kind, what: str, frame: Frame, *guards: Removal) -> Attack:
    return neighbour(kind, what, frame, *guards, arrival=as_lost_lease)


_from_bob = to_gateway(dl_src=BOB.mac)
_answer = claim(GATEWAY, by=ALICE.mac, target=BOB.ip)
_gratuitous = ether(to=BROADCAST) / claim(BOB.ip, by=ALICE.mac, target=BOB.ip, op=1)

SPOOFING: Final = (
    neighbour("ARP", "the gateway's address", ether(to=BOB.mac) / _answer, to_bob(arp="", arp_spa=GATEWAY)),
    neighbour(
        "ARP",
        "the gateway's address, by broadcast",
        ether(to=BROADCAST) / _answer,
        to_bob(arp="", arp_spa=GATEWAY),
    ),
    neighbour("ARP", "a request", asked(BOB.ip), to_bob(arp="", arp_tpa=BOB.ip)),
    overrides_arp("Bob's address", ether() / claim(BOB.ip, by=ALICE.mac), to_gateway(arp="", arp_spa=BOB.ip)),
    overrides_arp(
        "Bob's address, gratuitous and by broadcast", _gratuitous, to_gateway(arp="", arp_spa=BOB.ip)
    ),
    gateway(
        "ARP",
        "the gateway's own address",
        ether() / claim(GATEWAY, by=ALICE.mac),
        to_gateway(arp="", arp_spa=GATEWAY),
    ),
    gateway(
        "ARP",
        "Bob's address and MAC",
        ether() / claim(BOB.ip, by=BOB.mac),
        to_gateway(arp="", arp_sha=BOB.mac),
    ),
    gateway(
        "ARP",
        "Alice's address at Bob's MAC",
        ether() / claim(ALICE.ip, by=BOB.mac),
        to_gateway(arp="", arp_sha=BOB.mac),
    ),
    host(
        "ARP",
        "a request for the uplink's address",
        lambda at: asked(at.uplink),
        answered_arp,
        to_gateway(arp=""),
    ),
    host(
        "ARP",
        "a request for the uplink's address, at the tap",
        lambda at: asked(at.uplink, to=at.tap),
        answered_arp,
        arp_enabled,
    ),
    neighbour(
        "MAC",
        "the gateway's",
        Ether(src=GATEWAY_MAC, dst=BOB.mac) / ping(ALICE.ip, BOB.ip),
        to_bob(dl_src=GATEWAY_MAC),
    ),
    gateway("MAC", "Bob's", ether(BOB.mac) / ping(ALICE.ip, GATEWAY), _from_bob),
    gateway(
        "MAC",
        "the gateway's own",
        ether(GATEWAY_MAC) / ping(ALICE.ip, GATEWAY),
        to_gateway(dl_src=GATEWAY_MAC),
    ),
    host("MAC", "Bob's", ether(BOB.mac) / udp(ALICE.ip, WORLD), by_uplink, _from_bob, without(LEAVING)),
    neighbour(
        "IP", "the gateway's", ether(to=BOB.mac) / ping(GATEWAY, BOB.ip), to_bob(ip="", nw_src=GATEWAY)
    ),
    gateway("IP", "Bob's", ether() / ping(BOB.ip, GATEWAY), to_gateway(ip="", nw_src=BOB.ip)),
    gateway("IP", "the gateway's own", ether() / ping(GATEWAY, WORLD), to_gateway(ip="", nw_src=GATEWAY)),
    gateway("IP", "by broadcast", to_all(), to_gateway(dl_dst=BROADCAST)),
    gateway("IP", "to a multicast group", to_many(), to_gateway(dl_dst=MDNS)),
    *(
        host("IP", what, ether() / udp(ip, WORLD), by_uplink, to_gateway(ip="", nw_src=ip), without(LEAVING))
        for what, ip in (("Bob's", BOB.ip), ("an unassigned address", "203.0.113.9"))
    ),
    host(
        "IP",
        "around the bridge",
        lambda at: ether(to=at.tap) / udp(ALICE.ip, WORLD),
        by_uplink,
        without(AROUND),
    ),
    host(
        "IP",
        "to the management network",
        lambda at: ether() / udp(ALICE.ip, at.manager),
        by_management,
        without(LEAVING),
    ),
)

_to_all_nodes = ether(to=ALL_NODES)
_gateways: Final = "fe80::1"

DISCOVERY: Final = (
    neighbour("ND", "a solicitation", _to_all_nodes / solicitation(), to_bob(ipv6="")),
    neighbour("ND", "the gateway's address", _to_all_nodes / located(_gateways), to_bob(ipv6="")),
    neighbour(
        "ND",
        "the gateway's address, as a solicited answer",
        ether(to=BOB.mac) / located(_gateways, BOBS_IPV6, asked=True),
        to_bob(ipv6=""),
    ),
    gateway("ND", "a solicitation", _to_all_nodes / solicitation(), to_gateway(ipv6="")),
    gateway(
        "ND",
        "the gateway's own address",
        ether() / located(_gateways, _gateways, asked=True),
        to_gateway(ipv6=""),
    ),
    gateway(
        "ND",
        "Bob's address",
        _to_all_nodes / located(BOBS_IPV6),
        to_gateway(ipv6=""),
        without(INPUT),
        arrival=in_neighbours(BRIDGE),
    ),
    host(
        "ND",
        "Bob's address, at the tap",
        _to_all_nodes / located(BOBS_IPV6),
        in_neighbours(ALICE.tap),
        ipv6_enabled,
        without(AT_TAPS),
    ),
)

_offer = udp(ALICE.ip, "255.255.255.255", 68, of=67)
_to_server = ether() / udp(ALICE.ip, GATEWAY, 67, of=67)
_serves = {"udp": "", "tp_src": "67"}
_of_bob = partial(dhcp, mac=ALICE.mac, server_id=GATEWAY)
_inform = dhcp("inform", mac=ALICE.mac, ciaddr=BOB.ip)
_relayed = relayed(dhcp("discover", mac=ALICE.mac), by=BOB.ip)
_release = _of_bob("release", ciaddr=BOB.ip, chaddr=BOB.mac)
_release_by_id = _of_bob("release", ciaddr=BOB.ip, client_id=BOBS_ID)
_decline = _of_bob("decline", requested_addr=BOB.ip, chaddr=BOB.mac)
_decline_by_id = _of_bob("decline", requested_addr=BOB.ip, client_id=BOBS_ID)

DHCP: Final = (
    neighbour("DHCP server", "an offer by broadcast", ether(to=BROADCAST) / _offer, to_bob(**_serves)),
    neighbour("DHCP server", "an offer to the neighbour", ether(to=BOB.mac) / _offer, to_bob(**_serves)),
    neighbour(
        "DHCP server", "an answer to the neighbour's address", _inform, replies_as_sent, arrival=as_answer
    ),
    neighbour("DHCP server", "an answer to a relay's address", _relayed, any_client, arrival=as_answer),
    gateway("DHCP server", "a message between servers", _to_server, without_flow(**_serves)),
    host(
        "DHCP server",
        "an offer by broadcast",
        ether(to=BROADCAST) / _offer,
        at_port(68),
        to_gateway(**_serves),
        without(INPUT),
    ),
    leased("DHCP release", "of the neighbour's MAC", _release, any_client),
    leased("DHCP release", "of the neighbour's MAC, by unicast", unicast(_release), any_client),
    leased("DHCP release", "by the neighbour's client id", _release_by_id, leases_by_client_id),
    leased("DHCP decline", "of the neighbour's MAC", _decline, any_client),
    leased("DHCP decline", "of the neighbour's MAC, by unicast", unicast(_decline), any_client),
    leased("DHCP decline", "by the neighbour's client id", _decline_by_id, leases_by_client_id),
)
