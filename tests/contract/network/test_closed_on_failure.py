"""Closed on failure (P19): probes every ten milliseconds leak nothing while slices are plugged in, and while the switch
is killed and comes back; and all that is legitimate passes afterwards.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import pytest
from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from node_agent.flows import gateway_mac
from node_agent.lab.lab import Lab, LabNode
from node_agent.slices import HostUnreadable, SliceNetwork
from tests.agent.eventually import eventually
from tests.contract.network.hosts import Host, aspects_of, gateway_of
from tests.contract.network.slices import GATEWAY, NETWORK, network, run, slice_on
from tests.contract.network.wire import BROADCAST, Ear, Wire, is_arp_reply, who_has

pytestmark = pytest.mark.node
ALICE, BOB = network(0), network(1)
DOOR: Final = gateway_mac(GATEWAY)
MARK: Final = b"leaked"
EVERY: Final = 0.01
ROUNDS: Final = 5


@pytest.fixture
def node(lab: Lab) -> LabNode:
    return lab.node("lab-b")


@pytest.fixture
def host(node: LabNode) -> Iterator[Host]:
    from tests.contract.network.lab_host import real_host

    with real_host(node, NETWORK) as host:
        run(gateway_of(host).to_apply())
        yield host
        for slot in (ALICE, BOB):
            unplug(host, slot)


def unplug(host: Host, slot: SliceNetwork) -> None:
    for aspect in reversed(aspects_of(host)):
        run(aspect.to_remove(slot))


def probes(sender: SliceNetwork, victim: SliceNetwork) -> tuple[Packet, ...]:
    """To a neighbour by its card, by the gateway and by everybody; and to the world in a neighbour's name."""
    payload = IP(src=sender.ip, dst=victim.ip) / ICMP(id=7) / MARK
    stolen = IP(src=victim.ip, dst="198.51.100.1") / UDP(sport=4000, dport=9) / MARK
    return (
        Ether(src=sender.mac, dst=victim.mac) / payload,
        Ether(src=sender.mac, dst=DOOR) / payload,
        Ether(src=sender.mac, dst=BROADCAST) / payload,
        Ether(src=sender.mac, dst=DOOR) / stolen,
    )


@contextmanager
def probing(wire: Wire, frames: tuple[Packet, ...]) -> Iterator[None]:
    """Send them all, every ten milliseconds."""
    over = threading.Event()

    def send() -> None:
        while not over.wait(EVERY):
            for frame in frames:
                # The tap's carrier comes and goes with the switch.
                with suppress(OSError):
                    wire.send(frame)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def leaked(frame: Packet) -> bool:
    return MARK in bytes(frame)


def nothing_leaked_to(wire: Wire, slot: SliceNetwork) -> bool:
    """Of all that came until the gateway answered it."""
    before: list[Packet] = []

    def is_answer(frame: Packet) -> bool:
        before.append(frame)
        return is_arp_reply(frame)

    assert wire.ask(who_has(GATEWAY, mac=slot.mac, own=slot.ip), is_answer) is not None
    return not any(map(leaked, before))


def plug(host: Host, slot: SliceNetwork) -> Wire:
    """Step by step; the slice holds its tap from the moment when there is one."""
    wire: Wire | None = None
    for aspect in aspects_of(host):
        for step in aspect.to_apply(slice_on(slot)):
            step.run()
            if step.name == "link.add_tap":
                wire = Wire(slot.tap)
    assert wire is not None
    return wire


def test_nothing_reaches_a_slice_while_it_is_plugged_in(host: Host) -> None:
    with plug(host, ALICE) as alice, probing(alice, probes(ALICE, BOB)):
        for _ in range(ROUNDS):
            with plug(host, BOB) as bob:
                assert nothing_leaked_to(bob, BOB)
            unplug(host, BOB)


def test_nothing_leaves_a_slice_that_it_may_not_send_while_it_is_plugged_in(host: Host) -> None:
    with plug(host, ALICE) as alice, Ear("uplink0") as uplink:
        for _ in range(ROUNDS):
            with plug(host, BOB) as bob, probing(bob, probes(BOB, ALICE)):
                assert nothing_leaked_to(bob, BOB)
                assert nothing_leaked_to(alice, ALICE)
            unplug(host, BOB)
        alice.send(
            Ether(src=ALICE.mac, dst=DOOR) / IP(src=ALICE.ip, dst="198.51.100.1") / UDP(dport=7) / b"own"
        )
        before = uplink.until(lambda frame: UDP in frame and bytes(frame[UDP].payload)[:3] == b"own")
    assert not any(map(leaked, before))


def test_nothing_leaks_while_the_switch_is_killed_and_comes_back(host: Host, node: LabNode) -> None:
    with (
        plug(host, ALICE) as alice,
        plug(host, BOB) as bob,
        Ear("uplink0") as uplink,
        probing(alice, probes(ALICE, BOB)),
    ):
        assert nothing_leaked_to(bob, BOB)
        node.kill("ovs-vswitchd")
        eventually(lambda: is_whole(host))
        assert nothing_leaked_to(bob, BOB)
        bob.send(Ether(src=BOB.mac, dst=DOOR) / IP(src=BOB.ip, dst="198.51.100.1") / UDP(dport=7) / b"own")
        before = uplink.until(lambda frame: UDP in frame and bytes(frame[UDP].payload)[:3] == b"own")
        assert not any(map(leaked, before))


def is_whole(host: Host) -> bool:
    """One survey; whether there was nothing left to do."""
    with suppress(HostUnreadable):
        done = run(gateway_of(host).to_apply())
        done += [
            name
            for slot in (ALICE, BOB)
            for aspect in aspects_of(host)
            for name in run(aspect.to_apply(slice_on(slot)))
        ]
        return done == []
    return False
