"""Real frames on a lab node: what a slice may send arrives and is answered, and nobody else hears it.

What it may not send is in the table of attacks (`test_attacks`).
"""

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet

from node_agent.flows import gateway_mac
from node_agent.lab.lab import Lab
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
    is_arp_reply,
    is_dhcp,
    lease,
    who_has,
)

ALICE, BOB = network(0), network(1)
DOOR = gateway_mac(GATEWAY)
WORLD = "198.51.100.1"

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


@pytest.fixture
def world(lab: Lab) -> Iterator[socket.socket]:
    from tests.contract.network.lab_host import socket_of

    with socket_of(lab.site.pid) as far:
        far.bind((WORLD, 7000))
        yield far


def ether(mac: str = ALICE.mac, to: str = DOOR) -> Packet:
    return Ether(src=mac, dst=to)


def asked_for(slot: SliceNetwork, frame: Packet) -> bool:
    return ARP in frame and frame[ARP].op == 1 and frame[ARP].pdst == slot.ip


def test_a_slice_reaches_the_world_under_the_uplinks_address(wires: tuple[Wire, Wire], host: Host) -> None:
    alice, _ = wires
    question = ether() / IP(src=ALICE.ip, dst=WORLD) / UDP(sport=4000, dport=7) / b"hello"
    with Ear("uplink0") as uplink:
        answer = alice.ask(question, lambda frame: UDP in frame and frame[UDP].sport == 7)
        assert answer is not None
        assert (answer.dst, answer[IP].dst, bytes(answer[UDP].payload)) == (ALICE.mac, ALICE.ip, b"hello")
        sent = uplink.until(lambda frame: UDP in frame and frame[UDP].sport == 7)
    assert {frame[IP].src for frame in sent if IP in frame} == set(host.links.addresses("uplink0"))


def test_what_a_slice_opened_is_cut_off_both_ways_with_its_rules_and_goes_on_when_they_are_back(
    wires: tuple[Wire, Wire], host: Host, world: socket.socket
) -> None:
    alice, _ = wires
    translation = aspects_of(host)[3]

    def heard_so_far() -> list[bytes]:
        alice.send(who_has(GATEWAY, mac=ALICE.mac, own=ALICE.ip))
        return [bytes(frame[UDP].payload) for frame in alice.until(is_arp_reply) if UDP in frame]

    out = ether() / IP(src=ALICE.ip, dst=WORLD) / UDP(sport=4002, dport=7000)
    alice.send(out / b"may I come out?")
    said, seen_as = world.recvfrom(100)
    assert said == b"may I come out?"
    world.sendto(b"certainly, come out", seen_as)
    assert heard_so_far() == [b"certainly, come out"]
    own = tuple(each for each in host.filter.ruleset().rules if each.rule.owner == ALICE.tap)
    host.filter.change(Change(delete=own))
    world.sendto(b"are you still there?", seen_as)
    alice.send(out / b"are you still there?")
    assert heard_so_far() == []
    run(translation.to_apply(slice_on(ALICE)))
    world.sendto(b"there you are again", seen_as)
    assert heard_so_far() == [b"there you are again"]
    alice.send(out / b"there you are again")
    assert world.recv(100) == b"there you are again"


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


def test_a_slice_cannot_decline_its_neighbours_address_in_its_own_name(
    wires: tuple[Wire, Wire], host: Host
) -> None:
    """Its own lease and reservation are of another address, so the server has nothing to take away."""
    alice, bob = wires
    assert lease(bob, BOB.mac) == BOB.ip
    alice.send(dhcp("decline", mac=ALICE.mac, requested_addr=BOB.ip, server_id=GATEWAY))
    assert lease(alice, ALICE.mac) == ALICE.ip
    assert LeaseAspect(host.leases).observe_address(BOB) == ObservedAddress(BOB.ip, "bound")
    assert lease(bob, BOB.mac) == BOB.ip


def test_an_address_that_a_slice_declined_is_given_to_its_slots_next_tenant(
    wires: tuple[Wire, Wire], host: Host
) -> None:
    alice, bob = wires
    assert lease(alice, ALICE.mac) == ALICE.ip
    alice.send(dhcp("decline", mac=ALICE.mac, requested_addr=ALICE.ip, server_id=GATEWAY))
    alice.send(dhcp("discover", mac=ALICE.mac))
    assert lease(bob, BOB.mac) == BOB.ip
    alice.send(who_has(GATEWAY, mac=ALICE.mac, own=ALICE.ip))
    assert not any(map(is_dhcp(2), alice.until(is_arp_reply)))
    leases = LeaseAspect(host.leases)
    run(leases.to_remove(ALICE))
    run(leases.to_apply(slice_on(ALICE)))
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
