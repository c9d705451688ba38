"""Attacks of one who says that she is another: by ARP, ND, MAC, address, and as or by way of the DHCP server."""

from functools import partial
from typing import Final

from scapy.layers.l2 import Ether

from tests.contract.network.arrivals import (
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
from tests.contract.network.attacks import (
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
from tests.contract.network.guards import (
    AROUND,
    AT_TAPS,
    INPUT,
    LEAVING,
    Removal,
    any_client,
    arp_heard,
    ipv6_heard,
    leases_by_client_id,
    replies_as_sent,
    to_bob,
    to_gateway,
    without,
    without_flow,
)
from tests.contract.network.scene import BOB, BRIDGE, DOOR, WORLD
from tests.contract.network.senders import ALICE
from tests.contract.network.slices import GATEWAY
from tests.contract.network.wire import BROADCAST, dhcp


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
    gateway("IP", "to all", to_all(), to_gateway(dl_dst=BROADCAST)),
    gateway("IP", "to many", to_many(), to_gateway(dl_dst=MDNS)),
    *(
        host("IP", what, ether() / udp(ip, WORLD), by_uplink, to_gateway(ip="", nw_src=ip), without(LEAVING))
        for what, ip in (("Bob's", BOB.ip), ("nobody's", "203.0.113.9"))
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
        "to its managers",
        lambda at: ether() / udp(ALICE.ip, at.manager),
        by_management,
        without(LEAVING),
    ),
)

_to_all_nodes = ether(to=ALL_NODES)
_gateways: Final = "fe80::1"

DISCOVERY: Final = (
    neighbour("ND", "a question", _to_all_nodes / solicitation(), to_bob(ipv6="")),
    neighbour("ND", "the gateway's address", _to_all_nodes / located(_gateways), to_bob(ipv6="")),
    neighbour(
        "ND",
        "the same, as an answer",
        ether(to=BOB.mac) / located(_gateways, BOBS_IPV6, asked=True),
        to_bob(ipv6=""),
    ),
    gateway("ND", "a question", _to_all_nodes / solicitation(), to_gateway(ipv6="")),
    gateway(
        "ND", "its own address", ether() / located(_gateways, _gateways, asked=True), to_gateway(ipv6="")
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
        ipv6_heard,
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
    neighbour("DHCP server", "an offer to all", ether(to=BROADCAST) / _offer, to_bob(**_serves)),
    neighbour("DHCP server", "an offer to him", ether(to=BOB.mac) / _offer, to_bob(**_serves)),
    neighbour("DHCP server", "an answer by his address", _inform, replies_as_sent, arrival=as_answer),
    neighbour("DHCP server", "an answer by a relay's", _relayed, any_client, arrival=as_answer),
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
    leased("DHCP release", "by his id", _release_by_id, leases_by_client_id),
    leased("DHCP decline", "of his card", _decline, any_client),
    leased("DHCP decline", "the same, from an address", unicast(_decline), any_client),
    leased("DHCP decline", "by his id", _decline_by_id, leases_by_client_id),
)
