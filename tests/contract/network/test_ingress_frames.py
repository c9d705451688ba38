"""Real packets through ways in from outside: in and back, for whom they are, until they are closed (ING-2).

The world is a socket on the far side of the uplink; Alice and Bob answer from their ends of their taps.
"""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet

from events.values import Ipv4Address
from node_agent.flows import gateway_mac
from node_agent.lab.lab import Lab
from node_agent.looks import one_look
from node_agent.rules import DROP, INTO_SLICES, MAPPED, NODE, Change, rule
from node_agent.slices import SliceNetwork
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
from tests.contract.network.wire import Ear, Wire, is_arp_reply, who_has

ALICE, BOB = network(0), network(1)
DOOR = gateway_mac(GATEWAY)
PUBLIC_PORT, PORT = 20053, 53
WORLD, ELSEWHERE = "198.51.100.1/32", "192.0.2.0/24"
WHOLE = "203.0.113.7"
"""A public address that is one slice's alone."""
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


def expose(host: Host, slot: SliceNetwork, *ways: Mapping) -> None:
    with one_look():
        for aspect in aspects_of(host):
            run(aspect.to_apply(slice_on(slot, *ways)))


@pytest.fixture
def public(host: Host) -> Ipv4Address:
    (address,) = host.links.addresses("uplink0")
    return address


def udp(public: Ipv4Address, *sources: str) -> PortMapping:
    return port_mapping(1, public, PUBLIC_PORT, PORT, *sources).model_copy(update={"protocol": "udp"})


@pytest.fixture
def wires(host: Host, public: Ipv4Address) -> Iterator[tuple[Wire, Wire]]:
    """Alice's and Bob's ends of their taps; both have spoken with the gateway, and Alice is exposed."""
    expose(host, ALICE, udp(public))
    with ExitStack() as stack:
        alice, bob = (stack.enter_context(Wire(slot.tap)) for slot in (ALICE, BOB))
        for wire, slot in ((alice, ALICE), (bob, BOB)):
            assert wire.ask(who_has(GATEWAY, mac=slot.mac, own=slot.ip), is_arp_reply) is not None
        yield alice, bob


@pytest.fixture
def world(lab: Lab) -> Iterator[socket.socket]:
    from tests.contract.network.lab_host import socket_of

    with socket_of(lab.site.pid) as far:
        yield far


@contextmanager
def routed(lab: Lab, destination: str, public: Ipv4Address) -> Iterator[None]:
    """The world sends what is for there to the node."""
    lab.site.run(["ip", "route", "add", destination, "via", public])
    try:
        yield
    finally:
        lab.site.run(["ip", "route", "del", destination, "via", public])


def knocks(wire: Wire, slot: SliceNetwork, public: Ipv4Address, payload: bytes) -> None:
    """At the public port, from the slice."""
    packet = IP(src=slot.ip, dst=public) / UDP(sport=4000, dport=PUBLIC_PORT) / payload
    wire.send(Ether(src=slot.mac, dst=DOOR) / packet)


def hears(wire: Wire, slot: SliceNetwork, payload: bytes, seconds: float = 5.0) -> Packet | None:
    """The datagram, for whom the slice answers the gateway's questions about its address meanwhile."""

    def wanted(frame: Packet) -> bool:
        if ARP in frame and frame[ARP].op == 1 and frame[ARP].pdst == slot.ip:
            answer = ARP(op=2, hwsrc=slot.mac, psrc=slot.ip, hwdst=DOOR, pdst=GATEWAY)
            wire.send(Ether(src=slot.mac, dst=DOOR) / answer)
        return UDP in frame and bytes(frame[UDP].payload).startswith(payload)

    return wire.heard(wanted, seconds)


def first_heard(wire: Wire, slot: SliceNetwork) -> bytes:
    """What the first datagram that comes says; a short one comes with padding."""
    heard = hears(wire, slot, b"")
    assert heard is not None
    return bytes(heard[UDP].payload)[: heard[UDP].len - 8]


def answers(wire: Wire, slot: SliceNetwork, question: Packet, payload: bytes) -> None:
    asked = question[UDP]
    answer = IP(src=slot.ip, dst=question[IP].src) / UDP(sport=asked.dport, dport=asked.sport) / payload
    wire.send(Ether(src=slot.mac, dst=DOOR) / answer)


def test_what_comes_to_a_public_port_reaches_its_slice_and_the_answer_comes_back(
    wires: tuple[Wire, Wire], world: socket.socket, public: Ipv4Address
) -> None:
    alice, _ = wires
    world.sendto(b"knock", (public, PUBLIC_PORT))
    question = hears(alice, ALICE, b"knock")
    assert question is not None
    assert (question[IP].src, question[IP].dst, question[UDP].dport) == ("198.51.100.1", ALICE.ip, PORT)
    answers(alice, ALICE, question, b"come in")
    assert world.recvfrom(100) == (b"come in", (public, PUBLIC_PORT))


def test_only_sources_that_are_allowed_come_in(
    wires: tuple[Wire, Wire], host: Host, world: socket.socket, public: Ipv4Address
) -> None:
    alice, _ = wires
    expose(host, ALICE, udp(public, ELSEWHERE))
    world.sendto(b"not for you", (public, PUBLIC_PORT))
    expose(host, ALICE, udp(public, ELSEWHERE, WORLD))
    world.sendto(b"for you", (public, PUBLIC_PORT))
    assert first_heard(alice, ALICE) == b"for you"


def test_a_source_that_is_allowed_no_more_is_cut_off_at_once(
    wires: tuple[Wire, Wire], host: Host, world: socket.socket, public: Ipv4Address
) -> None:
    alice, _ = wires
    expose(host, ALICE, udp(public, WORLD))
    world.sendto(b"hello", (public, PUBLIC_PORT))
    assert hears(alice, ALICE, b"hello") is not None
    expose(host, ALICE, udp(public, ELSEWHERE))
    world.sendto(b"again", (public, PUBLIC_PORT))
    expose(host, ALICE, udp(public))
    world.sendto(b"welcome", (public, PUBLIC_PORT))
    assert first_heard(alice, ALICE) == b"welcome"


def test_a_connection_is_dead_with_its_rules_whatever_the_kernel_remembers(
    wires: tuple[Wire, Wire], host: Host, world: socket.socket, public: Ipv4Address
) -> None:
    alice, _ = wires
    world.sendto(b"knock", (public, PUBLIC_PORT))
    question = hears(alice, ALICE, b"knock")
    assert question is not None
    answers(alice, ALICE, question, b"come in")
    assert world.recv(100) == b"come in"
    permission = tuple(each for each in host.filter.ruleset().rules if each.rule.chain == MAPPED)
    host.filter.change(Change(delete=tuple(each for each in permission if each.rule.place == ALICE.tap)))
    world.sendto(b"still there?", (public, PUBLIC_PORT))
    answers(alice, ALICE, question, b"still here")
    expose(host, ALICE, udp(public))
    world.sendto(b"back", (public, PUBLIC_PORT))
    heard = hears(alice, ALICE, b"")
    assert heard is not None
    assert bytes(heard[UDP].payload).startswith(b"back")
    answers(alice, ALICE, heard, b"hello again")
    assert world.recv(100) == b"hello again"


def comes_in_to_alice_as_the_gateway(
    wire: Wire, slot: SliceNetwork, alice: Wire, public: Ipv4Address
) -> None:
    """Whoever of the node's slices it is that knocks at the public port of hers."""
    knocks(wire, slot, public, b"knock")
    question = hears(alice, ALICE, b"knock")
    assert question is not None
    assert (question[IP].src, question[IP].dst, question[UDP].dport) == (GATEWAY, ALICE.ip, PORT)
    answers(alice, ALICE, question, b"come in")
    answer = hears(wire, slot, b"come in")
    assert answer is not None
    assert (answer[IP].src, answer[UDP].sport, answer[IP].dst) == (public, PUBLIC_PORT, slot.ip)


def test_a_neighbour_comes_in_by_the_public_port_as_the_gateway_and_by_no_other_road(
    wires: tuple[Wire, Wire], public: Ipv4Address
) -> None:
    alice, bob = wires
    comes_in_to_alice_as_the_gateway(bob, BOB, alice, public)


def test_a_neighbour_comes_in_by_the_public_port_only_where_its_own_address_is_allowed(
    wires: tuple[Wire, Wire], host: Host, public: Ipv4Address
) -> None:
    alice, bob = wires
    expose(host, ALICE, udp(public, WORLD, f"{public}/32", f"{GATEWAY}/32"))
    knocks(bob, BOB, public, b"not for you")
    expose(host, ALICE, udp(public, f"{BOB.ip}/32"))
    knocks(bob, BOB, public, b"for you")
    assert first_heard(alice, ALICE) == b"for you"


def test_a_slice_comes_in_by_its_own_public_port_as_the_gateway(
    wires: tuple[Wire, Wire], public: Ipv4Address
) -> None:
    alice, _ = wires
    comes_in_to_alice_as_the_gateway(alice, ALICE, alice, public)


def test_two_ways_in_lead_to_their_own_ports_and_one_is_closed_without_the_other(
    wires: tuple[Wire, Wire], host: Host, world: socket.socket, public: Ipv4Address
) -> None:
    alice, _ = wires
    other = port_mapping(2, public, 20080, 80).model_copy(update={"protocol": "udp"})
    expose(host, ALICE, udp(public), other)
    for public_port, port in ((PUBLIC_PORT, PORT), (20080, 80)):
        world.sendto(b"knock", (public, public_port))
        question = hears(alice, ALICE, b"knock")
        assert question is not None
        assert question[UDP].dport == port
        answers(alice, ALICE, question, b"come in")
        assert world.recvfrom(100) == (b"come in", (public, public_port))
    expose(host, ALICE, other)
    world.sendto(b"closed", (public, PUBLIC_PORT))
    world.sendto(b"open", (public, 20080))
    assert first_heard(alice, ALICE) == b"open"


def test_a_whole_public_address_leads_to_its_slice_at_every_port_from_sources_that_are_allowed(
    wires: tuple[Wire, Wire], host: Host, lab: Lab, world: socket.socket, public: Ipv4Address
) -> None:
    alice, _ = wires
    with routed(lab, WHOLE, public):
        expose(host, ALICE, address_mapping(1, WHOLE, WORLD))
        for port in (53, 7777):
            world.sendto(b"knock", (WHOLE, port))
            question = hears(alice, ALICE, b"knock")
            assert question is not None
            assert (question[IP].dst, question[UDP].dport) == (ALICE.ip, port)
            answers(alice, ALICE, question, b"come in")
            assert world.recvfrom(100) == (b"come in", (WHOLE, port))
        expose(host, ALICE, address_mapping(1, WHOLE, ELSEWHERE))
        world.sendto(b"not for you", (WHOLE, 53))
        world.sendto(b"nor as another", (WHOLE, 54))
        expose(host, ALICE, address_mapping(1, WHOLE))
        world.sendto(b"for you", (WHOLE, 53))
        assert first_heard(alice, ALICE) == b"for you"


def test_the_world_reaches_no_slice_at_its_own_address(
    wires: tuple[Wire, Wire], host: Host, lab: Lab, world: socket.socket, public: Ipv4Address
) -> None:
    alice, _ = wires
    [last_word] = (each for each in host.filter.ruleset().rules if each.rule == ENTERING)
    with routed(lab, SUBNET, public):
        world.sendto(b"straight", (ALICE.ip, PORT))
        world.sendto(b"proper", (public, PUBLIC_PORT))
        assert first_heard(alice, ALICE) == b"proper"
        host.filter.change(Change(delete=(last_word,)))
        world.sendto(b"straight", (ALICE.ip, PORT))
        assert first_heard(alice, ALICE) == b"straight"


def test_what_another_program_translates_to_a_slice_does_not_arrive(
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
        heard = hears(alice, ALICE, b"")
    finally:
        lab.node("lab-a").run(["nft", "delete", "table", "ip", "other"])
    assert heard is not None
    assert bytes(heard[UDP].payload).startswith(b"proper")


def test_answers_leave_under_the_public_address_alone(
    wires: tuple[Wire, Wire], world: socket.socket, public: Ipv4Address
) -> None:
    alice, _ = wires
    with Ear("uplink0") as uplink:
        world.sendto(b"knock", (public, PUBLIC_PORT))
        question = hears(alice, ALICE, b"knock")
        assert question is not None
        answers(alice, ALICE, question, b"come in")
        sent = uplink.until(lambda frame: UDP in frame and bytes(frame[UDP].payload).startswith(b"come in"))
    assert {frame[IP].src for frame in sent if UDP in frame} <= {public, "198.51.100.1"}
