"""Where Alice's frames can be seen to have arrived, or to have had an effect: at her neighbour, the gateway, the host.

Each of these sends the frame, and after it one that she may send, and looks no further than the arrival of that one,
which must come: so it is not for a dead wire that a frame did not arrive. It returns whether it did.
"""

import json
import socket
from collections.abc import Callable
from typing import Final

from scapy.layers.dhcp import BOOTP
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet, Padding

from events.values import MacAddress
from tests.contract.network.scene import BOB, BOBS_DOOR, BRIDGE, DOOR, WORLD, Scene, fresh_mark, setting
from tests.contract.network.senders import ALICE
from tests.contract.network.slices import GATEWAY
from tests.contract.network.wire import Ear, dhcp, is_arp_reply, is_dhcp, lease, who_has
from tests.lab.awaiting import eventually

Arrival = Callable[[Scene, Packet, bytes], bool]
"""Plays the frame; the bytes are its mark."""

PREFIX: Final = "2001:db8:5c1c::"
"""Of what a router would be that is none."""
BOBS_IPV6: Final = "fe80::b0b"
BOBS_ID: Final = b"\x01" + bytes.fromhex(BOB.mac.replace(":", ""))


def bears(mark: bytes) -> Callable[[Packet], bool]:
    return lambda frame: mark in bytes(frame)


def out(target: str, port: int, mark: bytes) -> Packet:
    return Ether(src=ALICE.mac, dst=DOOR) / IP(src=ALICE.ip, dst=target) / UDP(sport=4000, dport=port) / mark


def question(mark: bytes) -> Packet:
    return who_has(GATEWAY, mac=ALICE.mac, own=ALICE.ip) / Padding(mark)


def at_neighbour(scene: Scene, attack: Packet, mark: bytes) -> bool:
    """Heard by Bob, before what comes in by his own door."""
    last = fresh_mark()
    scene.sender.send(attack, out(scene.places.uplink, BOBS_DOOR, last))
    return any(map(bears(mark), scene.bob_hears(bears(last))))


def at_gateway(scene: Scene, attack: Packet, mark: bytes) -> bool:
    """On the bridge's own device, before her question about the gateway."""
    last = fresh_mark()
    with Ear(BRIDGE) as gateway:
        scene.sender.send(attack, question(last))
        return any(map(bears(mark), gateway.until(bears(last))))


def in_arp_table(scene: Scene, attack: Packet, mark: bytes) -> bool:
    """Believed: Bob's address is at another card than his."""
    at_gateway(scene, attack, mark)
    listed = scene.node.run(["ip", "-json", "neigh", "show", "dev", BRIDGE, "to", BOB.ip]).stdout
    [bob] = json.loads(listed)
    return bool(bob["lladdr"] != BOB.mac)


def in_neighbours(link: str) -> Arrival:
    """Believed on this link of the host: Bob's IPv6 address is at another card. Without IPv6, it knows none."""

    def believed(scene: Scene, attack: Packet, mark: bytes) -> bool:
        known = ["to", BOBS_IPV6, "dev", link]
        stale = ["lladdr", BOB.mac, "nud", "stale"]
        scene.node.run(["ip", "-6", "neigh", "replace", *known, *stale], check=False)
        at_gateway(scene, attack, mark)
        listed = json.loads(scene.node.run(["ip", "-json", "-6", "neigh", "show", *known]).stdout)
        return any(each["lladdr"] != BOB.mac for each in listed)

    return believed


def answered_arp(scene: Scene, attack: Packet, mark: bytes) -> bool:
    """Answered towards Alice for another address than the gateway's, before her own question is."""
    last = fresh_mark()
    with Ear(ALICE.tap) as tap:
        scene.sender.send(attack, question(last))
        heard = tap.until(bears(last))
        heard += tap.until(lambda frame: is_arp_reply(frame) and frame[ARP].psrc == GATEWAY)
    return any(is_arp_reply(frame) and frame[ARP].psrc == scene.places.uplink for frame in heard)


def by_uplink(scene: Scene, attack: Packet, mark: bytes) -> bool:
    """Left to the world, before a packet of her own does."""
    last = fresh_mark()
    with Ear("uplink0") as uplink:
        scene.sender.send(attack, out(WORLD, 7, last))
        return any(map(bears(mark), uplink.until(bears(last))))


def by_management(scene: Scene, attack: Packet, mark: bytes) -> bool:
    """Left to the management network, before a packet of the host's own that follows hers to the world."""
    last = fresh_mark()
    with Ear("mgmt0") as management, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        by_uplink(scene, attack, mark)
        own.sendto(last, (scene.places.manager, 7))
        return any(map(bears(mark), management.until(bears(last))))


def at_port(port: int) -> Arrival:
    """Received by a program of the host that listens on all its addresses."""

    def received(scene: Scene, attack: Packet, mark: bytes) -> bool:
        last = fresh_mark()
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as service:
            service.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            service.bind(("::", port))
            service.settimeout(5.0)
            by_uplink(scene, attack, mark)
            service.sendto(last, ("::ffff:127.0.0.1", port))
            return service.recv(100) != last

    return received


def as_route(scene: Scene, attack: Packet, mark: bytes) -> bool:
    """The host has taken a route from it, which it then forgets."""
    at_gateway(scene, attack, mark)
    routes = scene.node.run(["ip", "-6", "route", "show"]).stdout
    for disabled in ("1", "0"):
        setting("ipv6", BRIDGE, "disable_ipv6").write_text(disabled)
    return PREFIX in routes


def as_answer(scene: Scene, attack: Packet, mark: bytes) -> bool:
    """Bob has heard what the DHCP server answers to Alice's card, before the answer to his own question."""
    own = dhcp("discover", mac=BOB.mac)
    own[BOOTP].xid = 0xB0B
    scene.sender.send(attack, question(mark))
    scene.bob.send(own)
    before = scene.bob_hears(lambda frame: is_dhcp(2)(frame) and frame[BOOTP].xid == 0xB0B)
    hers = bytes.fromhex(ALICE.mac.replace(":", ""))
    return any(UDP in frame and frame[UDP].sport == 67 and hers in bytes(frame[UDP]) for frame in before)


def as_lost_lease(scene: Scene, attack: Packet, mark: bytes) -> bool:
    """Bob's lease is gone, when Alice has given up her own after it and taken it again."""
    again = dhcp("request", mac=ALICE.mac, requested_addr=ALICE.ip)
    assert lease(scene.bob, BOB.mac, client_id=BOBS_ID) == BOB.ip
    scene.sender.send(again)
    eventually(lambda: {ALICE.mac, BOB.mac} <= leased(scene))
    scene.sender.send(attack, dhcp("release", mac=ALICE.mac, ciaddr=ALICE.ip, server_id=GATEWAY))
    eventually(lambda: ALICE.mac not in leased(scene))
    scene.sender.send(again)
    # Both of one look that has hers: the server empties its file before it writes it anew.
    return BOB.mac not in eventually(lambda: leased_with(scene, ALICE.mac))


def leased(scene: Scene) -> frozenset[MacAddress]:
    return frozenset(each.mac for each in scene.host.leases.leases() if not each.expired)


def leased_with(scene: Scene, mac: MacAddress) -> frozenset[MacAddress] | None:
    found = leased(scene)
    return found if mac in found else None
