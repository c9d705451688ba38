"""Real frames on a lab node: what a slice may send arrives, what it may not does not, and nobody else hears it.

Every attack is followed by something legitimate on the same wire, so that a test does not pass on a dead one.
"""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Final

import pytest
from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.inet6 import ICMPv6EchoRequest, ICMPv6ND_NS, ICMPv6ND_RA, IPv6
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.packet import Packet

from node_agent.flows import Flow, gateway_mac, port_number
from node_agent.leases import LeaseAspect, ObservedAddress
from node_agent.looks import one_look
from node_agent.rules import Change
from node_agent.slices import SliceNetwork
from tests.contract.network.conftest import clear
from tests.contract.network.hosts import Host, aspects_of, gateway_of
from tests.contract.network.slices import GATEWAY, network, run, slice_on
from tests.contract.network.wire import (
    BROADCAST,
    Ear,
    Wire,
    dhcp,
    hardware_address,
    is_arp_reply,
    is_dhcp,
    lease,
    who_has,
)

ALICE, BOB = network(0), network(1)
DOOR = gateway_mac(GATEWAY)
WORLD = "198.51.100.1"
_EVERYWHERE: Final = f"LOCAL,output:{port_number(BOB.index)}"


pytestmark = pytest.mark.parametrize(
    "node_host", [pytest.param("real", marks=pytest.mark.node)], indirect=True, scope="module"
)


@pytest.fixture(scope="module")
def carrying(node_host: Host) -> Iterator[Host]:
    """A node with Alice's and Bob's slices, made once: only frames pass in these tests."""
    run(gateway_of(node_host).to_apply())
    for slot in (ALICE, BOB):
        for aspect in aspects_of(node_host):
            run(aspect.to_apply(slice_on(slot)))
    yield node_host
    clear(node_host)


@pytest.fixture
def host(carrying: Host) -> Iterator[Host]:
    """What a test took away from the node is put back after it."""
    yield carrying
    with one_look():
        run(gateway_of(carrying).to_apply())


@pytest.fixture
def wires(host: Host) -> Iterator[tuple[Wire, Wire]]:
    """Alice's and Bob's ends of their taps; both have spoken with the gateway."""
    with ExitStack() as stack:
        alice, bob = (stack.enter_context(Wire(slot.tap)) for slot in (ALICE, BOB))
        for wire, slot in ((alice, ALICE), (bob, BOB)):
            assert wire.ask(who_has(GATEWAY, mac=slot.mac, own=slot.ip), is_arp_reply) is not None
        yield alice, bob


def ether(mac: str = ALICE.mac, to: str = DOOR) -> Packet:
    return Ether(src=mac, dst=to)


def ping(source: str, target: str) -> Packet:
    return IP(src=source, dst=target) / ICMP(id=7)


def claim(ip: str, *, by: str, op: int = 2, target: str = GATEWAY) -> Packet:
    return ARP(op=op, hwsrc=by, psrc=ip, hwdst=DOOR, pdst=target)


ATTACKS: Final[dict[str, Packet]] = {
    "another's MAC": ether(mac=BOB.mac) / ping(ALICE.ip, GATEWAY),
    "another's address": ether() / ping(BOB.ip, WORLD),
    "the gateway's address": ether() / ping(GATEWAY, WORLD),
    "an address of nobody's": ether() / ping("203.0.113.9", WORLD),
    "ARP that claims another's address": ether() / claim(BOB.ip, by=ALICE.mac),
    "ARP that claims the gateway's address": ether(to=BROADCAST)
    / claim(GATEWAY, by=ALICE.mac, target=BOB.ip),
    "ARP in another's name": ether() / claim(BOB.ip, by=BOB.mac),
    "ARP of another's card": ether() / claim(ALICE.ip, by=BOB.mac),
    "ARP to a neighbour": ether(to=BOB.mac) / claim(GATEWAY, by=ALICE.mac, target=BOB.ip),
    "a question about a neighbour": who_has(BOB.ip, mac=ALICE.mac, own=ALICE.ip),
    "a packet to a neighbour": ether(to=BOB.mac) / ping(ALICE.ip, BOB.ip),
    "a broadcast": ether(to=BROADCAST) / ping(ALICE.ip, "10.100.1.255"),
    "a multicast": ether(to="01:00:5e:00:00:fb") / IP(src=ALICE.ip, dst="224.0.0.251") / UDP(dport=5353),
    "a VLAN tag": ether() / Dot1Q(vlan=7) / ping(ALICE.ip, WORLD),
    "a priority tag": ether() / Dot1Q(vlan=0, prio=5) / ping(ALICE.ip, WORLD),
    "a VLAN tag within another": ether() / Dot1Q(vlan=7) / Dot1Q(vlan=8) / ping(ALICE.ip, WORLD),
    "a router advertisement": ether(to="33:33:00:00:00:01")
    / IPv6(src="fe80::1", dst="ff02::1")
    / ICMPv6ND_RA(),
    "a neighbour solicitation": ether() / IPv6(src="fe80::2", dst="fe80::1") / ICMPv6ND_NS(tgt="fe80::1"),
    "a DHCP server": ether(to=BROADCAST)
    / IP(src=ALICE.ip, dst="255.255.255.255")
    / UDP(sport=67, dport=68)
    / b"offer",
    "a DHCP server that talks to the gateway": ether()
    / IP(src=ALICE.ip, dst=GATEWAY)
    / UDP(sport=67, dport=67),
    "an unknown protocol": Ether(src=ALICE.mac, dst=DOOR, type=0x88CC) / b"lldp",
}


def asked_for(slot: SliceNetwork, frame: Packet) -> bool:
    return ARP in frame and frame[ARP].op == 1 and frame[ARP].pdst == slot.ip


def asks(slot: SliceNetwork) -> Callable[[Packet], bool]:
    return lambda frame: ARP in frame and frame[ARP].op == 1 and frame.src == slot.mac


def forged(attack: str) -> Callable[[Packet], bool]:
    """Whether a frame is that attack; the kernel takes an outer tag off before it shows a frame (packet(7))."""
    whole = bytes(ATTACKS[attack])
    untagged = whole[:12] + whole[16:] if Dot1Q in ATTACKS[attack] else whole
    return lambda frame: bytes(frame) in (whole, untagged)


@pytest.fixture
def unguarded(host: Host, wires: tuple[Wire, Wire]) -> None:
    """Alice's port passes everything on, to the gateway and to Bob."""
    anything = Flow(900, frozenset({("in_port", str(port_number(ALICE.index)))}), _EVERYWHERE)
    host.switch.set_flows("br-slice", 0x77, frozenset({anything}))


@pytest.mark.parametrize("attack", ATTACKS)
def test_it_reaches_neither_the_gateway_nor_a_neighbour(attack: str, wires: tuple[Wire, Wire]) -> None:
    alice, bob = wires
    with Ear("br-slice") as gateway:
        alice.send(ATTACKS[attack])
        alice.send(who_has(GATEWAY, mac=ALICE.mac, own=ALICE.ip))
        assert not any(map(forged(attack), gateway.until(asks(ALICE))))
    bob.send(who_has(GATEWAY, mac=BOB.mac, own=BOB.ip))
    assert [frame for frame in bob.until(is_arp_reply) if frame.src != DOOR] == []


@pytest.mark.usefixtures("unguarded")
@pytest.mark.parametrize("attack", ATTACKS)
def test_without_its_guard_it_would_reach_both(attack: str, wires: tuple[Wire, Wire]) -> None:
    alice, bob = wires
    with Ear("br-slice") as gateway:
        alice.send(ATTACKS[attack])
        gateway.until(forged(attack))
    assert bob.heard(forged(attack)) is not None


def test_a_slice_reaches_the_world_under_the_uplinks_address(wires: tuple[Wire, Wire], host: Host) -> None:
    alice, _ = wires
    question = ether() / IP(src=ALICE.ip, dst=WORLD) / UDP(sport=4000, dport=7) / b"hello"
    with Ear("uplink0") as uplink:
        answer = alice.ask(question, lambda frame: UDP in frame and frame[UDP].sport == 7)
        assert answer is not None
        assert (answer.dst, answer[IP].dst, bytes(answer[UDP].payload)) == (ALICE.mac, ALICE.ip, b"hello")
        sent = uplink.until(lambda frame: UDP in frame and frame[UDP].sport == 7)
    assert {frame[IP].src for frame in sent if IP in frame} == set(host.links.addresses("uplink0"))


def test_without_masquerade_no_private_source_leaves_the_uplink(wires: tuple[Wire, Wire], host: Host) -> None:
    alice, _ = wires
    masquerade = tuple(each for each in host.filter.ruleset().rules if each.rule.chain == "source_nat")
    host.filter.change(Change(delete=masquerade))
    with Ear("uplink0") as uplink, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        alice.send(ether() / IP(src=ALICE.ip, dst=WORLD) / UDP(sport=4001, dport=7) / b"naked")
        alice.ask(who_has(GATEWAY, mac=ALICE.mac, own=ALICE.ip), is_arp_reply)
        own.sendto(b"own", (WORLD, 7))
        before = uplink.until(lambda frame: UDP in frame and bytes(frame[UDP].payload)[:3] == b"own")
    assert [frame for frame in before if IP in frame and frame[IP].src.startswith("10.")] == []


def test_a_slice_does_not_reach_its_neighbour_through_the_gateway(wires: tuple[Wire, Wire]) -> None:
    alice, bob = wires
    with Ear("br-slice") as gateway:
        alice.send(ether() / ping(ALICE.ip, BOB.ip))
        alice.send(who_has(GATEWAY, mac=ALICE.mac, own=ALICE.ip))
        # It does reach the gateway, which forwards or drops it before it answers the question after it.
        gateway.until(lambda frame: ARP in frame and frame[ARP].op == 2 and frame.dst == ALICE.mac)
    bob.send(who_has(GATEWAY, mac=BOB.mac, own=BOB.ip))
    assert [frame for frame in bob.until(is_arp_reply) if ICMP in frame] == []


@pytest.mark.parametrize("road", ["the gateway", "everybody", "the tap itself"])
@pytest.mark.parametrize("address", ["the gateway", "the uplink", "loopback", "broadcast"])
def test_a_slice_reaches_no_service_of_the_host(
    address: str, road: str, wires: tuple[Wire, Wire], host: Host
) -> None:
    alice, _ = wires
    (uplink,) = host.links.addresses("uplink0")
    to = {"the gateway": DOOR, "everybody": BROADCAST, "the tap itself": hardware_address(ALICE.tap)}[road]
    target = {"the gateway": GATEWAY, "the uplink": uplink, "loopback": "127.0.0.1"}.get(
        address, "255.255.255.255"
    )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as service:
        service.bind(("0.0.0.0", 9999))
        service.settimeout(5.0)
        alice.send(ether(to=to) / IP(src=ALICE.ip, dst=target) / UDP(sport=4002, dport=9999) / b"forbidden")
        assert alice.ask(who_has(GATEWAY, mac=ALICE.mac, own=ALICE.ip), is_arp_reply) is not None
        service.sendto(b"own", ("127.0.0.1", 9999))
        assert service.recv(100) == b"own"


def test_the_tap_itself_forwards_nothing_and_answers_nobody(wires: tuple[Wire, Wire]) -> None:
    alice, _ = wires
    tap = hardware_address(ALICE.tap)
    with Ear("uplink0") as uplink, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        alice.send(ether(to=tap) / IP(src=ALICE.ip, dst=WORLD) / UDP(sport=4003, dport=7) / b"around")
        alice.send(ether(to=tap) / IPv6(src="fe80::2", dst="ff02::1") / ICMPv6EchoRequest())
        alice.send(who_has(GATEWAY, mac=ALICE.mac, own=ALICE.ip))
        assert {frame.src for frame in alice.until(is_arp_reply)} <= {DOOR}
        own.sendto(b"own", (WORLD, 7))
        before = uplink.until(lambda frame: UDP in frame and bytes(frame[UDP].payload)[:3] == b"own")
    assert [frame for frame in before if UDP in frame and frame[UDP].sport == 4003] == []


def test_the_host_reaches_a_slice_and_hears_its_answer(wires: tuple[Wire, Wire]) -> None:
    """As the readiness probe does."""
    alice, _ = wires
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.settimeout(5.0)
        probe.sendto(b"are you there?", (ALICE.ip, 5000))
        question = alice.heard(lambda frame: UDP in frame or asked_for(ALICE, frame))
        if question is not None and ARP in question:
            alice.send(ether() / ARP(op=2, hwsrc=ALICE.mac, psrc=ALICE.ip, hwdst=DOOR, pdst=GATEWAY))
            question = alice.heard(lambda frame: UDP in frame)
        assert question is not None
        answer = IP(src=ALICE.ip, dst=GATEWAY) / UDP(sport=5000, dport=question[UDP].sport) / b"yes"
        alice.send(ether() / answer)
        assert probe.recv(100) == b"yes"


FORGED: Final[dict[str, Packet]] = {
    "release": dhcp("release", mac=ALICE.mac, chaddr=BOB.mac, ciaddr=BOB.ip, server_id=GATEWAY),
    "decline": dhcp("decline", mac=ALICE.mac, chaddr=BOB.mac, requested_addr=BOB.ip, server_id=GATEWAY),
    "decline of another's address": dhcp("decline", mac=ALICE.mac, requested_addr=BOB.ip, server_id=GATEWAY),
    "release by client id": dhcp(
        "release",
        mac=ALICE.mac,
        ciaddr=BOB.ip,
        server_id=GATEWAY,
        client_id=b"\x01" + bytes.fromhex(BOB.mac.replace(":", "")),
    ),
}


@pytest.mark.parametrize("forgery", FORGED)
def test_a_forged_dhcp_message_does_not_touch_a_neighbours_lease(
    forgery: str, wires: tuple[Wire, Wire], host: Host
) -> None:
    alice, bob = wires
    assert lease(bob, BOB.mac) == BOB.ip
    forged = FORGED[forgery]
    alice.send(forged)
    # The same as a unicast from her own address, as a client releases.
    alice.send(ether() / IP(src=ALICE.ip, dst=GATEWAY) / forged[UDP])
    assert lease(alice, ALICE.mac) == ALICE.ip
    assert LeaseAspect(host.leases).observe_address(BOB) == ObservedAddress(BOB.ip, "bound")
    assert lease(bob, BOB.mac) == BOB.ip


def test_a_relays_address_in_a_request_is_not_answered(wires: tuple[Wire, Wire]) -> None:
    alice, _ = wires
    relayed = dhcp("discover", mac=ALICE.mac)
    relayed[3].giaddr = BOB.ip
    alice.send(relayed)
    assert alice.heard(is_dhcp(2), seconds=0.3) is None
    assert lease(alice, ALICE.mac) == ALICE.ip


def test_an_answer_that_dhcp_broadcasts_is_heard_by_its_client_alone(wires: tuple[Wire, Wire]) -> None:
    alice, bob = wires
    assert lease(alice, ALICE.mac, flags=0x8000) == ALICE.ip
    refused = dhcp("request", mac=ALICE.mac, requested_addr="10.100.1.200")
    assert alice.ask(refused, is_dhcp(6)) is not None
    bob.send(who_has(GATEWAY, mac=BOB.mac, own=BOB.ip))
    assert [frame for frame in bob.until(is_arp_reply) if UDP in frame] == []


def test_a_client_renews_its_lease_from_its_own_address(wires: tuple[Wire, Wire]) -> None:
    alice, _ = wires
    assert lease(alice, ALICE.mac) == ALICE.ip
    renewal = dhcp("request", mac=ALICE.mac, ciaddr=ALICE.ip)
    for to, target in ((DOOR, GATEWAY), (BROADCAST, "255.255.255.255")):
        renewed = alice.ask(ether(to=to) / IP(src=ALICE.ip, dst=target) / renewal[UDP], is_dhcp(5))
        assert renewed is not None
