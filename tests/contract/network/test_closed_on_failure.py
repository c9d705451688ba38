"""Closed on failure (P19): probes every ten milliseconds leak nothing while slices are plugged in, and while the switch
is killed and comes back; and all that is legitimate passes afterwards.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Final

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from node_agent.foreign import STANDALONE
from node_agent.lab.lab import Lab, LabNode
from node_agent.rules import ACCEPT, FROM_SLICES, INTO_SLICES, NODE, OUT_OF_SLICES, Change, rule
from node_agent.slices import HostUnreadable, SliceNetwork
from tests.agent.eventually import eventually
from tests.contract.network.hosts import Host, aspects_of, gateway_of
from tests.contract.network.probes import DOOR, WORLD, Heard, Sent, leaked, listening, probes, probing
from tests.contract.network.slices import GATEWAY, NETWORK, network, run, slice_on
from tests.contract.network.wire import Ear, Wire, is_arp_reply, who_has

pytestmark = pytest.mark.node
ALICE, BOB = network(0), network(1)
ROUNDS: Final = 5
FLOOR: Final = 10
"""Of how many rounds of probes one is sure to have been sent in its time."""
FORGED: Final = 0x77
"""A cookie of nobody's."""
DENYING: Final = (FROM_SLICES, OUT_OF_SLICES, INTO_SLICES)


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


@pytest.fixture
def at_host(host: Host) -> Iterator[Heard]:
    with listening(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as heard:
        yield heard


def unplug(host: Host, slot: SliceNetwork) -> None:
    for aspect in reversed(aspects_of(host)):
        run(aspect.to_remove(slot))


def heard_by(wire: Wire, slot: SliceNetwork) -> list[Packet]:
    """All that came until the gateway answered it."""
    before: list[Packet] = []

    def is_answer(frame: Packet) -> bool:
        before.append(frame)
        return is_arp_reply(frame)

    assert wire.ask(who_has(GATEWAY, mac=slot.mac, own=slot.ip), is_answer) is not None
    return before


def passed_before(uplink: Ear, wire: Wire, slot: SliceNetwork) -> list[Packet]:
    """All that left by the uplink until what the slice may send did."""
    wire.send(Ether(src=slot.mac, dst=DOOR) / IP(src=slot.ip, dst=WORLD) / UDP(dport=7) / b"own")
    return uplink.until(lambda frame: UDP in frame and bytes(frame[UDP].payload)[:3] == b"own")


@contextmanager
def plugged(host: Host, slot: SliceNetwork) -> Iterator[Wire]:
    """Step by step; the slice holds its tap from the moment when there is one."""
    with plugged_and_probing(host, slot, ()) as (wire, _):
        yield wire


@contextmanager
def plugged_and_probing(
    host: Host, slot: SliceNetwork, frames: tuple[Packet, ...]
) -> Iterator[tuple[Wire, Sent]]:
    """And it sends these from that moment on."""
    steps = (step for aspect in aspects_of(host) for step in aspect.to_apply(slice_on(slot)))
    first = next(steps)
    assert first.name == "link.add_tap"
    first.run()
    with Wire(slot.tap) as wire, probing(wire, frames) as sent:
        for step in steps:
            step.run()
        yield wire, sent


def several_more(sent: Sent) -> None:
    before = sent.rounds
    eventually(lambda: sent.rounds >= before + FLOOR)


def test_nothing_reaches_a_slice_while_it_is_plugged_in(host: Host) -> None:
    with plugged_and_probing(host, ALICE, probes(ALICE, BOB)) as (_, sent):
        for _ in range(ROUNDS):
            before = sent.rounds
            with plugged(host, BOB) as bob:
                assert sent.rounds > before, "nobody probed meanwhile"
                several_more(sent)
                assert leaked(heard_by(bob, BOB)) == set()
            unplug(host, BOB)


def test_nothing_leaves_a_slice_that_it_may_not_send_while_it_is_plugged_in(
    host: Host, at_host: Heard
) -> None:
    with plugged(host, ALICE) as alice, Ear("uplink0") as uplink:
        for _ in range(ROUNDS):
            with plugged_and_probing(host, BOB, probes(BOB, ALICE)) as (bob, sent):
                assert sent.rounds > 0, "nobody probed meanwhile"
                several_more(sent)
                assert leaked(heard_by(bob, BOB)) == set()
                assert leaked(heard_by(alice, ALICE)) == set()
            unplug(host, BOB)
        assert leaked(passed_before(uplink, alice, ALICE)) == set()
        assert leaked(at_host()) == set()


def test_nothing_leaks_while_the_switch_is_killed_and_comes_back(
    host: Host, node: LabNode, at_host: Heard
) -> None:
    with (
        plugged_and_probing(host, ALICE, probes(ALICE, BOB)) as (_, sent),
        plugged(host, BOB) as bob,
        Ear("uplink0") as uplink,
    ):
        several_more(sent)
        assert leaked(heard_by(bob, BOB)) == set()
        before = sent.rounds
        node.kill("ovs-vswitchd")
        eventually(lambda: is_whole(host))
        assert sent.rounds >= before + FLOOR, "nobody probed meanwhile"
        several_more(sent)
        assert leaked(heard_by(bob, BOB)) == set()
        assert leaked(passed_before(uplink, bob, BOB)) == set()
        assert leaked(at_host()) == set()


def test_every_probe_arrives_where_the_bridge_and_the_gateway_are_open(host: Host, at_host: Heard) -> None:
    """Without which it would prove nothing that none does."""
    with (
        plugged_and_probing(host, ALICE, probes(ALICE, BOB)) as (_, sent),
        plugged(host, BOB) as bob,
        Ear("uplink0") as uplink,
    ):
        assert leaked(heard_by(bob, BOB)) == set()
        host.switch.set_flows(NETWORK.bridge, FORGED, frozenset({replace(STANDALONE, priority=900)}))
        host.filter.change(Change(insert=tuple(rule("inet", chain, NODE, ACCEPT) for chain in DENYING)))
        several_more(sent)
        assert leaked(heard_by(bob, BOB)) >= {"by his card", "by the gateway", "by everybody"}
        assert "in his name" in leaked(passed_before(uplink, bob, BOB))
        assert leaked(at_host()) == {"to the host"}
    run(gateway_of(host).to_apply())


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
