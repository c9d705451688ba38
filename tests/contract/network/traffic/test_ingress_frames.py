"""Tests of real packets through ingress rules (ING-2): packets from allowed sources reach the slice and are answered
until the rule is closed.

A socket on the far side of the uplink represents the external network. The slices of Alice and Bob answer from the
guest ends of their taps.
"""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet

from events.values import Ipv4Address
from node_agent.aspects.flows import gateway_mac
from node_agent.host.slices import SliceNetwork
from node_agent.host.snapshots import host_snapshot
from node_agent.lab.lab import Lab
from node_agent.packets.rules import DROP, INTO_SLICES, MAPPED, NODE, Change, rule
from tasks.orders import Mapping, PortMapping
from tests.contract.network.conftest import clear
from tests.contract.network.hosts import Host, aspects_of, gateway_of
from tests.contract.network.slices import (
    GATEWAY,
    SUBNET,
    address_mapping,
    network,
    port_mapping,
    run,
    slice_on,
)
from tests.contract.network.traffic.wire import Capture, Wire, arp_request, is_arp_reply

ALICE, BOB = network(0), network(1)
GATEWAY_MAC = gateway_mac(GATEWAY)
PUBLIC_PORT, PORT = 20053, 53
WORLD, ELSEWHERE = "198.51.100.1/32", "192.0.2.0/24"
WHOLE = "203.0.113.7"
"""A public address that belongs to one slice alone."""
ENTERING = rule("inet", INTO_SLICES, NODE, DROP)

pytestmark = pytest.mark.parametrize(
    "node_host", [pytest.param("real", marks=pytest.mark.node)], indirect=True, scope="module"
)


@pytest.fixture
def host(node_host: Host) -> Iterator[Host]:
    run(gateway_of(node_host).to_apply())
    expose(node_host, BOB)
    yield node_host
    clear(node_host)


def expose(host: Host, slot: SliceNetwork, *ingresses: Mapping) -> None:
    with host_snapshot():
        for aspect in aspects_of(host):
            run(aspect.to_apply(slice_on(slot, *ingresses)))


@pytest.fixture
def public(host: Host) -> Ipv4Address:
    (address,) = host.links.addresses("uplink0")
    return address


def udp(public: Ipv4Address, *sources: str) -> PortMapping:
    return port_mapping(1, public, PUBLIC_PORT, PORT, *sources).model_copy(update={"protocol": "udp"})


@pytest.fixture
def wires(host: Host, public: Ipv4Address) -> Iterator[tuple[Wire, Wire]]:
    """Guest ends of the taps of Alice's and Bob's slices. Both have exchanged ARP with the gateway, and Alice's slice
    has an ingress rule.
    """
    expose(host, ALICE, udp(public))
    with ExitStack() as stack:
        alice, bob = (stack.enter_context(Wire(slot.tap)) for slot in (ALICE, BOB))
        for wire, slot in ((alice, ALICE), (bob, BOB)):
            assert wire.ask(arp_request(GATEWAY, mac=slot.mac, own=slot.ip), is_arp_reply) is not None
        yield alice, bob


@pytest.fixture
def world(lab: Lab) -> Iterator[socket.socket]:
    from tests.contract.network.lab_host import socket_of

    with socket_of(lab.site.pid) as far:
        yield far


@contextmanager
def routed(lab: Lab, destination: str, public: Ipv4Address) -> Iterator[None]:
    """Add a route to the lab's external network that sends packets for this destination to the node."""
    lab.site.run(["ip", "route", "add", destination, "via", public])
    try:
        yield
    finally:
        lab.site.run(["ip", "route", "del", destination, "via", public])


def send_to_public_port(wire: Wire, slot: SliceNetwork, public: Ipv4Address, payload: bytes) -> None:
    """Send a UDP packet from the slice to the public port of the ingress rule."""
    packet = IP(src=slot.ip, dst=public) / UDP(sport=4000, dport=PUBLIC_PORT) / payload
    wire.send(Ether(src=slot.mac, dst=GATEWAY_MAC) / packet)


def receive_datagram(wire: Wire, slot: SliceNetwork, payload: bytes, seconds: float = 5.0) -> Packet | None:
    """Return the UDP datagram with this payload that the slice receives. The slice answers ARP requests for its address
    meanwhile.
    """

    def wanted(frame: Packet) -> bool:
        if ARP in frame and frame[ARP].op == 1 and frame[ARP].pdst == slot.ip:
            answer = ARP(op=2, hwsrc=slot.mac, psrc=slot.ip, hwdst=GATEWAY_MAC, pdst=GATEWAY)
            wire.send(Ether(src=slot.mac, dst=GATEWAY_MAC) / answer)
        return UDP in frame and bytes(frame[UDP].payload).startswith(payload)

    return wire.receive(wanted, seconds)


def first_payload(wire: Wire, slot: SliceNetwork) -> bytes:
    """Return the payload of the first UDP datagram that reaches the slice, without the padding of a short frame."""
    received = receive_datagram(wire, slot, b"")
    assert received is not None
    return bytes(received[UDP].payload)[: received[UDP].len - 8]


def answers(wire: Wire, slot: SliceNetwork, question: Packet, payload: bytes) -> None:
    asked = question[UDP]
    answer = IP(src=slot.ip, dst=question[IP].src) / UDP(sport=asked.dport, dport=asked.sport) / payload
    wire.send(Ether(src=slot.mac, dst=GATEWAY_MAC) / answer)


def test_packet_to_a_public_port_reaches_its_slice_and_the_answer_returns(
    wires: tuple[Wire, Wire], world: socket.socket, public: Ipv4Address
) -> None:
    alice, _ = wires
    world.sendto(b"knock", (public, PUBLIC_PORT))
    question = receive_datagram(alice, ALICE, b"knock")
    assert question is not None
    assert (question[IP].src, question[IP].dst, question[UDP].dport) == ("198.51.100.1", ALICE.ip, PORT)
    answers(alice, ALICE, question, b"come in")
    assert world.recvfrom(100) == (b"come in", (public, PUBLIC_PORT))


def test_packets_of_sources_that_an_ingress_rule_does_not_allow_do_not_arrive(
    wires: tuple[Wire, Wire], host: Host, world: socket.socket, public: Ipv4Address
) -> None:
    alice, _ = wires
    expose(host, ALICE, udp(public, ELSEWHERE))
    world.sendto(b"not for you", (public, PUBLIC_PORT))
    expose(host, ALICE, udp(public, ELSEWHERE, WORLD))
    world.sendto(b"for you", (public, PUBLIC_PORT))
    assert first_payload(alice, ALICE) == b"for you"


def test_packets_of_a_source_that_an_ingress_rule_no_longer_allows_are_dropped_immediately(
    wires: tuple[Wire, Wire], host: Host, world: socket.socket, public: Ipv4Address
) -> None:
    alice, _ = wires
    expose(host, ALICE, udp(public, WORLD))
    world.sendto(b"hello", (public, PUBLIC_PORT))
    assert receive_datagram(alice, ALICE, b"hello") is not None
    expose(host, ALICE, udp(public, ELSEWHERE))
    world.sendto(b"again", (public, PUBLIC_PORT))
    expose(host, ALICE, udp(public))
    world.sendto(b"welcome", (public, PUBLIC_PORT))
    assert first_payload(alice, ALICE) == b"welcome"


def test_connection_without_its_ingress_rule_is_dropped_although_the_kernel_still_tracks_it(
    wires: tuple[Wire, Wire], host: Host, world: socket.socket, public: Ipv4Address
) -> None:
    alice, _ = wires
    world.sendto(b"knock", (public, PUBLIC_PORT))
    question = receive_datagram(alice, ALICE, b"knock")
    assert question is not None
    answers(alice, ALICE, question, b"come in")
    assert world.recv(100) == b"come in"
    permission = tuple(each for each in host.filter.ruleset().rules if each.rule.chain == MAPPED)
    host.filter.change(Change(delete=tuple(each for each in permission if each.rule.place == ALICE.tap)))
    world.sendto(b"still there?", (public, PUBLIC_PORT))
    answers(alice, ALICE, question, b"still here")
    expose(host, ALICE, udp(public))
    world.sendto(b"back", (public, PUBLIC_PORT))
    received = receive_datagram(alice, ALICE, b"")
    assert received is not None
    assert bytes(received[UDP].payload).startswith(b"back")
    answers(alice, ALICE, received, b"hello again")
    assert world.recv(100) == b"hello again"


def check_entry_under_gateways_address(
    wire: Wire, slot: SliceNetwork, alice: Wire, public: Ipv4Address
) -> None:
    """Check that a packet of a slice to the public port of Alice's slice arrives with the gateway's address as its
    source, and that the answer returns.
    """
    send_to_public_port(wire, slot, public, b"knock")
    question = receive_datagram(alice, ALICE, b"knock")
    assert question is not None
    assert (question[IP].src, question[IP].dst, question[UDP].dport) == (GATEWAY, ALICE.ip, PORT)
    answers(alice, ALICE, question, b"come in")
    answer = receive_datagram(wire, slot, b"come in")
    assert answer is not None
    assert (answer[IP].src, answer[UDP].sport, answer[IP].dst) == (public, PUBLIC_PORT, slot.ip)


def test_neighbour_slice_connects_to_a_public_port_under_the_gateways_address(
    wires: tuple[Wire, Wire], public: Ipv4Address
) -> None:
    alice, bob = wires
    check_entry_under_gateways_address(bob, BOB, alice, public)


def test_neighbour_slice_connects_to_a_public_port_only_if_its_own_address_is_allowed(
    wires: tuple[Wire, Wire], host: Host, public: Ipv4Address
) -> None:
    alice, bob = wires
    expose(host, ALICE, udp(public, WORLD, f"{public}/32", f"{GATEWAY}/32"))
    send_to_public_port(bob, BOB, public, b"not for you")
    expose(host, ALICE, udp(public, f"{BOB.ip}/32"))
    send_to_public_port(bob, BOB, public, b"for you")
    assert first_payload(alice, ALICE) == b"for you"


def test_slice_connects_to_its_own_public_port_under_the_gateways_address(
    wires: tuple[Wire, Wire], public: Ipv4Address
) -> None:
    alice, _ = wires
    check_entry_under_gateways_address(alice, ALICE, alice, public)


def test_two_ingress_rules_of_a_slice_lead_to_their_own_ports_and_are_closed_separately(
    wires: tuple[Wire, Wire], host: Host, world: socket.socket, public: Ipv4Address
) -> None:
    alice, _ = wires
    other = port_mapping(2, public, 20080, 80).model_copy(update={"protocol": "udp"})
    expose(host, ALICE, udp(public), other)
    for public_port, port in ((PUBLIC_PORT, PORT), (20080, 80)):
        world.sendto(b"knock", (public, public_port))
        question = receive_datagram(alice, ALICE, b"knock")
        assert question is not None
        assert question[UDP].dport == port
        answers(alice, ALICE, question, b"come in")
        assert world.recvfrom(100) == (b"come in", (public, public_port))
    expose(host, ALICE, other)
    world.sendto(b"closed", (public, PUBLIC_PORT))
    world.sendto(b"open", (public, 20080))
    assert first_payload(alice, ALICE) == b"open"


def test_whole_public_address_leads_to_its_slice_at_every_port_from_allowed_sources(
    wires: tuple[Wire, Wire], host: Host, lab: Lab, world: socket.socket, public: Ipv4Address
) -> None:
    alice, _ = wires
    with routed(lab, WHOLE, public):
        expose(host, ALICE, address_mapping(1, WHOLE, WORLD))
        for port in (53, 7777):
            world.sendto(b"knock", (WHOLE, port))
            question = receive_datagram(alice, ALICE, b"knock")
            assert question is not None
            assert (question[IP].dst, question[UDP].dport) == (ALICE.ip, port)
            answers(alice, ALICE, question, b"come in")
            assert world.recvfrom(100) == (b"come in", (WHOLE, port))
        expose(host, ALICE, address_mapping(1, WHOLE, ELSEWHERE))
        world.sendto(b"not for you", (WHOLE, 53))
        world.sendto(b"nor as another", (WHOLE, 54))
        expose(host, ALICE, address_mapping(1, WHOLE))
        world.sendto(b"for you", (WHOLE, 53))
        assert first_payload(alice, ALICE) == b"for you"


def test_packet_from_an_outside_host_to_a_slices_private_address_does_not_arrive(
    wires: tuple[Wire, Wire], host: Host, lab: Lab, world: socket.socket, public: Ipv4Address
) -> None:
    alice, _ = wires
    [final_rule] = (each for each in host.filter.ruleset().rules if each.rule == ENTERING)
    with routed(lab, SUBNET, public):
        world.sendto(b"straight", (ALICE.ip, PORT))
        world.sendto(b"proper", (public, PUBLIC_PORT))
        assert first_payload(alice, ALICE) == b"proper"
        host.filter.change(Change(delete=(final_rule,)))
        world.sendto(b"straight", (ALICE.ip, PORT))
        assert first_payload(alice, ALICE) == b"straight"


def test_packet_that_a_foreign_nat_rule_translates_to_a_slice_does_not_arrive(
    wires: tuple[Wire, Wire], host: Host, lab: Lab, world: socket.socket, public: Ipv4Address
) -> None:
    alice, _ = wires
    foreign = (
        "nft add table ip other; nft add chain ip other in '{ type nat hook prerouting priority -110; }';"
        f" nft add rule ip other in udp dport 7777 dnat to {ALICE.ip}:{PORT}"
    )
    lab.node("lab-a").run(["sh", "-ec", foreign])
    try:
        world.sendto(b"smuggled", (public, 7777))
        world.sendto(b"proper", (public, PUBLIC_PORT))
        received = receive_datagram(alice, ALICE, b"")
    finally:
        lab.node("lab-a").run(["nft", "delete", "table", "ip", "other"])
    assert received is not None
    assert bytes(received[UDP].payload).startswith(b"proper")


def test_answers_to_ingress_connections_leave_only_with_the_public_source_address(
    wires: tuple[Wire, Wire], world: socket.socket, public: Ipv4Address
) -> None:
    alice, _ = wires
    with Capture("uplink0") as uplink:
        world.sendto(b"knock", (public, PUBLIC_PORT))
        question = receive_datagram(alice, ALICE, b"knock")
        assert question is not None
        answers(alice, ALICE, question, b"come in")
        sent = uplink.until(lambda frame: UDP in frame and bytes(frame[UDP].payload).startswith(b"come in"))
    assert {frame[IP].src for frame in sent if UDP in frame} <= {public, "198.51.100.1"}
