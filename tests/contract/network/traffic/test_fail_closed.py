"""Fail-closed behaviour (P19): probes that are sent every ten milliseconds do not leak while the networks of slices
are set up, or while the virtual switch is killed and restarted. All legitimate traffic passes afterwards.
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

from node_agent.aspects.foreign import STANDALONE
from node_agent.host.slices import HostUnreadable, SliceNetwork
from node_agent.lab.lab import Lab, LabNode
from node_agent.packets.rules import ACCEPT, FROM_SLICES, INTO_SLICES, NODE, OUT_OF_SLICES, Change, rule
from tests.agent.eventually import eventually
from tests.contract.network.hosts import Host, aspects_of, gateway_of
from tests.contract.network.probes import (
    GATEWAY_MAC,
    WORLD,
    Received,
    Sent,
    leaked,
    listening,
    probes,
    probing,
)
from tests.contract.network.slices import GATEWAY, NETWORK, network, run, slice_on
from tests.contract.network.traffic.wire import Capture, Wire, arp_request, is_arp_reply

pytestmark = pytest.mark.node
ALICE, BOB = network(0), network(1)
ROUNDS: Final = 5
FLOOR: Final = 10
"""Number of rounds of probes that must be sent while a step is tested, so that at least one round certainly falls into
that time.
"""
FORGED: Final = 0x77
"""OpenFlow cookie that belongs to no slot."""
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
def at_host(host: Host) -> Iterator[Received]:
    with listening(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as received:
        yield received


def unplug(host: Host, slot: SliceNetwork) -> None:
    for aspect in reversed(aspects_of(host)):
        run(aspect.to_remove(slot))


def frames_before_answer(wire: Wire, slot: SliceNetwork) -> list[Packet]:
    """Send an ARP request from the slice for the gateway. Return all frames that reach the slice up to the gateway's
    answer.
    """
    before: list[Packet] = []

    def is_answer(frame: Packet) -> bool:
        before.append(frame)
        return is_arp_reply(frame)

    assert wire.ask(arp_request(GATEWAY, mac=slot.mac, own=slot.ip), is_answer) is not None
    return before


def frames_before_own(uplink: Capture, wire: Wire, slot: SliceNetwork) -> list[Packet]:
    """Send an allowed packet from the slice. Return all frames that left by the uplink before this packet."""
    wire.send(Ether(src=slot.mac, dst=GATEWAY_MAC) / IP(src=slot.ip, dst=WORLD) / UDP(dport=7) / b"own")
    return uplink.until(lambda frame: UDP in frame and bytes(frame[UDP].payload)[:3] == b"own")


@contextmanager
def plugged(host: Host, slot: SliceNetwork) -> Iterator[Wire]:
    """Set up the slice's network step by step, and yield its tap, which is held open from its creation."""
    with plugged_and_probing(host, slot, ()) as (wire, _):
        yield wire


@contextmanager
def plugged_and_probing(
    host: Host, slot: SliceNetwork, frames: tuple[Packet, ...]
) -> Iterator[tuple[Wire, Sent]]:
    """Set up the slice's network step by step, and send these frames repeatedly from the creation of its tap."""
    steps = (step for aspect in aspects_of(host) for step in aspect.to_apply(slice_on(slot)))
    first = next(steps)
    assert first.name == "link.add_tap"
    first.run()
    with Wire(slot.tap) as wire, probing(wire, frames) as sent:
        for step in steps:
            step.run()
        yield wire, sent


def await_more_rounds(sent: Sent) -> None:
    before = sent.rounds
    eventually(lambda: sent.rounds >= before + FLOOR)


def test_no_forbidden_packet_reaches_a_slice_while_its_ovs_port_is_added(host: Host) -> None:
    with plugged_and_probing(host, ALICE, probes(ALICE, BOB)) as (_, sent):
        for _ in range(ROUNDS):
            before = sent.rounds
            with plugged(host, BOB) as bob:
                assert sent.rounds > before, "no probe was sent meanwhile"
                await_more_rounds(sent)
                assert leaked(frames_before_answer(bob, BOB)) == set()
            unplug(host, BOB)


def test_no_forbidden_packet_leaves_a_slice_while_its_ovs_port_is_added(
    host: Host, at_host: Received
) -> None:
    with plugged(host, ALICE) as alice, Capture("uplink0") as uplink:
        for _ in range(ROUNDS):
            with plugged_and_probing(host, BOB, probes(BOB, ALICE)) as (bob, sent):
                assert sent.rounds > 0, "no probe was sent meanwhile"
                await_more_rounds(sent)
                assert leaked(frames_before_answer(bob, BOB)) == set()
                assert leaked(frames_before_answer(alice, ALICE)) == set()
            unplug(host, BOB)
        assert leaked(frames_before_own(uplink, alice, ALICE)) == set()
        assert leaked(at_host()) == set()


def test_no_forbidden_probe_passes_while_the_virtual_switch_is_killed_and_restarted(
    host: Host, node: LabNode, at_host: Received
) -> None:
    with (
        plugged_and_probing(host, ALICE, probes(ALICE, BOB)) as (_, sent),
        plugged(host, BOB) as bob,
        Capture("uplink0") as uplink,
    ):
        await_more_rounds(sent)
        assert leaked(frames_before_answer(bob, BOB)) == set()
        before = sent.rounds
        node.kill("ovs-vswitchd")
        eventually(lambda: is_repaired(host))
        assert sent.rounds >= before + FLOOR, "no probe was sent meanwhile"
        await_more_rounds(sent)
        assert leaked(frames_before_answer(bob, BOB)) == set()
        assert leaked(frames_before_own(uplink, bob, BOB)) == set()
        assert leaked(at_host()) == set()


def test_every_forbidden_packet_arrives_if_the_bridge_and_the_gateway_have_no_guarding_rules(
    host: Host, at_host: Received
) -> None:
    """This test shows that the probes can arrive. Without it, the absence of probes in other tests would prove
    nothing.
    """
    with (
        plugged_and_probing(host, ALICE, probes(ALICE, BOB)) as (_, sent),
        plugged(host, BOB) as bob,
        Capture("uplink0") as uplink,
    ):
        assert leaked(frames_before_answer(bob, BOB)) == set()
        host.switch.set_flows(NETWORK.bridge, FORGED, frozenset({replace(STANDALONE, priority=900)}))
        host.filter.change(Change(insert=tuple(rule("inet", chain, NODE, ACCEPT) for chain in DENYING)))
        await_more_rounds(sent)
        assert leaked(frames_before_answer(bob, BOB)) >= {
            "to the neighbour's MAC",
            "by the gateway",
            "by broadcast",
        }
        assert "with the neighbour's address" in leaked(frames_before_own(uplink, bob, BOB))
        assert leaked(at_host()) == {"to the host"}
    run(gateway_of(host).to_apply())


def is_repaired(host: Host) -> bool:
    """Repair the node's network as one survey does. Return whether there was nothing to repair."""
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
