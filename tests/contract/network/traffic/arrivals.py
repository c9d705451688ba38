"""Places where frames of the attacking slice (Alice) can arrive or take effect: at the neighbour slice (Bob), the
gateway and the host.

Each function sends the frame of an attack, then a frame that Alice may send, and waits only for the second frame, which
must arrive. A broken connection therefore cannot explain a missing first frame. The function returns whether the first
frame arrived.
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
from tests.contract.network.senders import ALICE
from tests.contract.network.slices import GATEWAY
from tests.contract.network.traffic.scene import (
    BOB,
    BOBS_PUBLIC_PORT,
    BRIDGE,
    GATEWAY_MAC,
    WORLD,
    Scene,
    fresh_mark,
    setting,
)
from tests.contract.network.traffic.wire import Capture, arp_request, dhcp, is_arp_reply, is_dhcp, lease
from tests.lab.awaiting import eventually

Arrival = Callable[[Scene, Packet, bytes], bool]
"""Function that sends the frame of an attack and returns whether it arrived. The bytes are the mark by which the frame
is recognized.
"""

PREFIX: Final = "2001:db8:5c1c::"
"""IPv6 prefix in a forged router advertisement."""
BOBS_IPV6: Final = "fe80::b0b"
BOBS_ID: Final = b"\x01" + bytes.fromhex(BOB.mac.replace(":", ""))


def contains(mark: bytes) -> Callable[[Packet], bool]:
    return lambda frame: mark in bytes(frame)


def out(target: str, port: int, mark: bytes) -> Packet:
    return (
        Ether(src=ALICE.mac, dst=GATEWAY_MAC)
        / IP(src=ALICE.ip, dst=target)
        / UDP(sport=4000, dport=port)
        / mark
    )


def question(mark: bytes) -> Packet:
    return arp_request(GATEWAY, mac=ALICE.mac, own=ALICE.ip) / Padding(mark)


def at_neighbour(scene: Scene, attack: Packet, mark: bytes) -> bool:
    """Return whether the neighbour slice (Bob) receives the attack before a frame that enters by its own
    ingress rule.
    """
    last = fresh_mark()
    scene.sender.send(attack, out(scene.places.uplink, BOBS_PUBLIC_PORT, last))
    return any(map(contains(mark), scene.frames_at_bob(contains(last))))


def at_gateway(scene: Scene, attack: Packet, mark: bytes) -> bool:
    """Return whether the attack reaches the OVS bridge's internal device before a later ARP request of the attacking
    slice for the gateway.
    """
    last = fresh_mark()
    with Capture(BRIDGE) as gateway:
        scene.sender.send(attack, question(last))
        return any(map(contains(mark), gateway.until(contains(last))))


def in_arp_table(scene: Scene, attack: Packet, mark: bytes) -> bool:
    """Return whether the attack changed the MAC of the neighbour slice (Bob) in the gateway's ARP table."""
    at_gateway(scene, attack, mark)
    listed = scene.node.run(["ip", "-json", "neigh", "show", "dev", BRIDGE, "to", BOB.ip]).stdout
    [bob] = json.loads(listed)
    return bool(bob["lladdr"] != BOB.mac)


def in_neighbours(link: str) -> Arrival:
    """Return a function that checks whether the attack changed the MAC of Bob's IPv6 address in a link's neighbour
    table. This table is empty without IPv6.
    """

    def is_overridden(scene: Scene, attack: Packet, mark: bytes) -> bool:
        known = ["to", BOBS_IPV6, "dev", link]
        stale = ["lladdr", BOB.mac, "nud", "stale"]
        scene.node.run(["ip", "-6", "neigh", "replace", *known, *stale], check=False)
        at_gateway(scene, attack, mark)
        listed = json.loads(scene.node.run(["ip", "-json", "-6", "neigh", "show", *known]).stdout)
        return any(each["lladdr"] != BOB.mac for each in listed)

    return is_overridden


def answered_arp(scene: Scene, attack: Packet, mark: bytes) -> bool:
    """Return whether the attacking slice gets an ARP reply for the uplink's address, before it gets the reply to a
    later ARP request for the gateway's address.
    """
    last = fresh_mark()
    with Capture(ALICE.tap) as tap:
        scene.sender.send(attack, question(last))
        frames = tap.until(contains(last))
        frames += tap.until(lambda frame: is_arp_reply(frame) and frame[ARP].psrc == GATEWAY)
    return any(is_arp_reply(frame) and frame[ARP].psrc == scene.places.uplink for frame in frames)


def by_uplink(scene: Scene, attack: Packet, mark: bytes) -> bool:
    """Return whether the attack leaves the host by the uplink before a later, allowed packet of the attacking slice."""
    last = fresh_mark()
    with Capture("uplink0") as uplink:
        scene.sender.send(attack, out(WORLD, 7, last))
        return any(map(contains(mark), uplink.until(contains(last))))


def by_management(scene: Scene, attack: Packet, mark: bytes) -> bool:
    """Return whether the attack leaves the host to the management network before a packet that the host itself sends
    later.
    """
    last = fresh_mark()
    with Capture("mgmt0") as management, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        by_uplink(scene, attack, mark)
        own.sendto(last, (scene.places.manager, 7))
        return any(map(contains(mark), management.until(contains(last))))


def at_port(port: int) -> Arrival:
    """Return a function that checks whether a program of the host that listens on this UDP port at all addresses
    receives the attack.
    """

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
    """Return whether the host accepted an IPv6 route from the attack's router advertisement. The route is removed
    afterwards.
    """
    at_gateway(scene, attack, mark)
    routes = scene.node.run(["ip", "-6", "route", "show"]).stdout
    for disabled in ("1", "0"):
        setting("ipv6", BRIDGE, "disable_ipv6").write_text(disabled)
    return PREFIX in routes


def as_answer(scene: Scene, attack: Packet, mark: bytes) -> bool:
    """Return whether the neighbour slice (Bob) receives the DHCP server's answer to the card of the attacking slice
    (Alice), before the answer to its own request.
    """
    own = dhcp("discover", mac=BOB.mac)
    own[BOOTP].xid = 0xB0B
    scene.sender.send(attack, question(mark))
    scene.bob.send(own)
    before = scene.frames_at_bob(lambda frame: is_dhcp(2)(frame) and frame[BOOTP].xid == 0xB0B)
    of_alice = bytes.fromhex(ALICE.mac.replace(":", ""))
    return any(UDP in frame and frame[UDP].sport == 67 and of_alice in bytes(frame[UDP]) for frame in before)


def as_lost_lease(scene: Scene, attack: Packet, mark: bytes) -> bool:
    """Return whether the attack removed the DHCP lease of the neighbour slice (Bob). The lease file is read after the
    attacking slice (Alice) has released its own lease and obtained it again, because the server has handled the attack
    by then.
    """
    again = dhcp("request", mac=ALICE.mac, requested_addr=ALICE.ip)
    assert lease(scene.bob, BOB.mac, client_id=BOBS_ID) == BOB.ip
    scene.sender.send(again)
    eventually(lambda: {ALICE.mac, BOB.mac} <= leased(scene))
    scene.sender.send(attack, dhcp("release", mac=ALICE.mac, ciaddr=ALICE.ip, server_id=GATEWAY))
    eventually(lambda: ALICE.mac not in leased(scene))
    scene.sender.send(again)
    # Both from one read that contains Alice's: the server empties its file before it rewrites it.
    return BOB.mac not in eventually(lambda: leased_with(scene, ALICE.mac))


def leased(scene: Scene) -> frozenset[MacAddress]:
    return frozenset(each.mac for each in scene.host.leases.leases() if not each.expired)


def leased_with(scene: Scene, mac: MacAddress) -> frozenset[MacAddress] | None:
    found = leased(scene)
    return found if mac in found else None
