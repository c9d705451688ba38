"""Tests with real frames on a lab node: allowed frames of a slice arrive and are answered, and no other slice receives
them.

`test_attacks` covers the frames that a slice may not send.
"""

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet

from node_agent.aspects.flows import gateway_mac
from node_agent.aspects.leases import LeaseAspect, ObservedAddress
from node_agent.host.slices import SliceNetwork
from node_agent.host.snapshots import host_snapshot
from node_agent.lab.lab import Lab
from node_agent.packets.rules import Change
from tests.contract.network.conftest import clear
from tests.contract.network.hosts import Host, aspects_of, gateway_of
from tests.contract.network.slices import GATEWAY, network, run, slice_on
from tests.contract.network.traffic.wire import (
    BROADCAST,
    Capture,
    Wire,
    arp_request,
    dhcp,
    is_arp_reply,
    is_dhcp,
    lease,
)

ALICE, BOB = network(0), network(1)
GATEWAY_MAC = gateway_mac(GATEWAY)
WORLD = "198.51.100.1"

pytestmark = pytest.mark.parametrize(
    "node_host", [pytest.param("real", marks=pytest.mark.node)], indirect=True, scope="module"
)


@pytest.fixture(scope="module")
def carrying(node_host: Host) -> Iterator[Host]:
    """Node with the slices of Alice and Bob. They are created once for all tests, because these tests only send
    and receive frames.
    """
    run(gateway_of(node_host).to_apply())
    for slot in (ALICE, BOB):
        for aspect in aspects_of(node_host):
            run(aspect.to_apply(slice_on(slot)))
    yield node_host
    clear(node_host)


@pytest.fixture
def host(carrying: Host) -> Iterator[Host]:
    """Host with the slices of Alice and Bob. It is repaired after each test, because some tests remove parts of its
    network.
    """
    yield carrying
    with host_snapshot():
        run(gateway_of(carrying).to_apply())


@pytest.fixture
def wires(host: Host) -> Iterator[tuple[Wire, Wire]]:
    """Guest ends of the taps of Alice's and Bob's slices. Both have exchanged ARP with the gateway."""
    with ExitStack() as stack:
        alice, bob = (stack.enter_context(Wire(slot.tap)) for slot in (ALICE, BOB))
        for wire, slot in ((alice, ALICE), (bob, BOB)):
            assert wire.ask(arp_request(GATEWAY, mac=slot.mac, own=slot.ip), is_arp_reply) is not None
        yield alice, bob


@pytest.fixture
def world(lab: Lab) -> Iterator[socket.socket]:
    from tests.contract.network.lab_host import socket_of

    with socket_of(lab.site.pid) as far:
        far.bind((WORLD, 7000))
        yield far


def ether(mac: str = ALICE.mac, to: str = GATEWAY_MAC) -> Packet:
    return Ether(src=mac, dst=to)


def requests_mac_of(slot: SliceNetwork, frame: Packet) -> bool:
    return ARP in frame and frame[ARP].op == 1 and frame[ARP].pdst == slot.ip


def test_slice_reaches_an_outside_host_under_the_uplinks_address(
    wires: tuple[Wire, Wire], host: Host
) -> None:
    alice, _ = wires
    question = ether() / IP(src=ALICE.ip, dst=WORLD) / UDP(sport=4000, dport=7) / b"hello"
    with Capture("uplink0") as uplink:
        answer = alice.ask(question, lambda frame: UDP in frame and frame[UDP].sport == 7)
        assert answer is not None
        assert (answer.dst, answer[IP].dst, bytes(answer[UDP].payload)) == (ALICE.mac, ALICE.ip, b"hello")
        sent = uplink.until(lambda frame: UDP in frame and frame[UDP].sport == 7)
    assert {frame[IP].src for frame in sent if IP in frame} == set(host.links.addresses("uplink0"))


def test_connection_opened_by_a_slice_passes_in_both_directions_only_while_its_nftables_rules_exist(
    wires: tuple[Wire, Wire], host: Host, world: socket.socket
) -> None:
    alice, _ = wires
    translation = aspects_of(host)[3]

    def received_payloads() -> list[bytes]:
        alice.send(arp_request(GATEWAY, mac=ALICE.mac, own=ALICE.ip))
        return [bytes(frame[UDP].payload) for frame in alice.until(is_arp_reply) if UDP in frame]

    out = ether() / IP(src=ALICE.ip, dst=WORLD) / UDP(sport=4002, dport=7000)
    alice.send(out / b"may I come out?")
    received, seen_as = world.recvfrom(100)
    assert received == b"may I come out?"
    world.sendto(b"certainly, come out", seen_as)
    assert received_payloads() == [b"certainly, come out"]
    own = tuple(each for each in host.filter.ruleset().rules if each.rule.owner == ALICE.tap)
    host.filter.change(Change(delete=own))
    world.sendto(b"are you still there?", seen_as)
    alice.send(out / b"are you still there?")
    assert received_payloads() == []
    run(translation.to_apply(slice_on(ALICE)))
    world.sendto(b"there you are again", seen_as)
    assert received_payloads() == [b"there you are again"]
    alice.send(out / b"there you are again")
    assert world.recv(100) == b"there you are again"


def test_packet_with_a_private_source_address_does_not_leave_the_uplink_if_masquerade_is_missing(
    wires: tuple[Wire, Wire], host: Host
) -> None:
    alice, _ = wires
    masquerade = tuple(each for each in host.filter.ruleset().rules if each.rule.chain == "source_nat")
    host.filter.change(Change(delete=masquerade))
    with Capture("uplink0") as uplink, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        alice.send(ether() / IP(src=ALICE.ip, dst=WORLD) / UDP(sport=4001, dport=7) / b"private")
        alice.ask(arp_request(GATEWAY, mac=ALICE.mac, own=ALICE.ip), is_arp_reply)
        own.sendto(b"own", (WORLD, 7))
        before = uplink.until(lambda frame: UDP in frame and bytes(frame[UDP].payload)[:3] == b"own")
    assert [frame for frame in before if IP in frame and frame[IP].src.startswith("10.")] == []


def test_packet_of_the_host_reaches_a_slice_and_the_host_receives_the_answer(
    wires: tuple[Wire, Wire],
) -> None:
    """The host sends from an ordinary socket, as the agent's readiness probe does."""
    alice, _ = wires
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.settimeout(5.0)
        probe.sendto(b"are you there?", (ALICE.ip, 5000))
        question = alice.receive(lambda frame: UDP in frame or requests_mac_of(ALICE, frame))
        if question is not None and ARP in question:
            alice.send(ether() / ARP(op=2, hwsrc=ALICE.mac, psrc=ALICE.ip, hwdst=GATEWAY_MAC, pdst=GATEWAY))
            question = alice.receive(lambda frame: UDP in frame)
        assert question is not None
        answer = IP(src=ALICE.ip, dst=GATEWAY) / UDP(sport=5000, dport=question[UDP].sport) / b"yes"
        alice.send(ether() / answer)
        assert probe.recv(100) == b"yes"


def test_slice_cannot_send_a_dhcp_decline_for_the_address_of_its_neighbour(
    wires: tuple[Wire, Wire], host: Host
) -> None:
    """The DHCP server does not remove the neighbour's lease, because the lease and the reservation of the declining
    client are for another address.
    """
    alice, bob = wires
    assert lease(bob, BOB.mac) == BOB.ip
    alice.send(dhcp("decline", mac=ALICE.mac, requested_addr=BOB.ip, server_id=GATEWAY))
    assert lease(alice, ALICE.mac) == ALICE.ip
    assert LeaseAspect(host.leases).observe_address(BOB) == ObservedAddress(BOB.ip, "bound")
    assert lease(bob, BOB.mac) == BOB.ip


def test_address_that_a_slice_declined_by_dhcp_is_given_to_the_next_tenant_of_its_slot(
    wires: tuple[Wire, Wire], host: Host
) -> None:
    alice, bob = wires
    assert lease(alice, ALICE.mac) == ALICE.ip
    alice.send(dhcp("decline", mac=ALICE.mac, requested_addr=ALICE.ip, server_id=GATEWAY))
    alice.send(dhcp("discover", mac=ALICE.mac))
    assert lease(bob, BOB.mac) == BOB.ip
    alice.send(arp_request(GATEWAY, mac=ALICE.mac, own=ALICE.ip))
    assert not any(map(is_dhcp(2), alice.until(is_arp_reply)))
    leases = LeaseAspect(host.leases)
    run(leases.to_remove(ALICE))
    run(leases.to_apply(slice_on(ALICE)))
    assert lease(alice, ALICE.mac) == ALICE.ip


def test_answer_that_the_dhcp_server_broadcasts_reaches_only_its_client(wires: tuple[Wire, Wire]) -> None:
    alice, bob = wires
    assert lease(alice, ALICE.mac, flags=0x8000) == ALICE.ip
    refused = dhcp("request", mac=ALICE.mac, requested_addr="10.100.1.200")
    assert alice.ask(refused, is_dhcp(6)) is not None
    bob.send(arp_request(GATEWAY, mac=BOB.mac, own=BOB.ip))
    assert [frame for frame in bob.until(is_arp_reply) if UDP in frame] == []


def test_dhcp_client_renews_its_lease_from_its_own_address(wires: tuple[Wire, Wire]) -> None:
    alice, _ = wires
    assert lease(alice, ALICE.mac) == ALICE.ip
    renewal = dhcp("request", mac=ALICE.mac, ciaddr=ALICE.ip)
    for to, target in ((GATEWAY_MAC, GATEWAY), (BROADCAST, "255.255.255.255")):
        renewed = alice.ask(ether(to=to) / IP(src=ALICE.ip, dst=target) / renewal[UDP], is_dhcp(5))
        assert renewed is not None
