"""Test of a virtual switch that is killed on a lab node: no frame passes until the flows that guard its slices are
restored, then all legitimate traffic passes.
"""

from collections.abc import Iterator
from contextlib import suppress

import pytest
from scapy.layers.inet import ICMP, IP
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from node_agent.aspects.flows import gateway_mac
from node_agent.host.slices import Aspect, HostUnreadable
from node_agent.lab.lab import Lab, LabNode
from tests.agent.eventually import eventually
from tests.contract.network.hosts import Host, aspects_of, gateway_of
from tests.contract.network.slices import GATEWAY, NETWORK, network, run, slice_on
from tests.contract.network.traffic.wire import Wire, arp_request, is_arp_reply, lease

pytestmark = pytest.mark.node
ALICE, BOB = network(0, rate_mbit=100), network(1)


@pytest.fixture
def node(lab: Lab) -> LabNode:
    return lab.node("lab-b")


@pytest.fixture
def host(node: LabNode) -> Iterator[Host]:
    from tests.contract.network.lab_host import real_host

    with real_host(node, NETWORK) as host:
        run(gateway_of(host).to_apply())
        for slot in (ALICE, BOB):
            for aspect in aspects_of(host):
                run(aspect.to_apply(slice_on(slot)))
        yield host
        for slot in (ALICE, BOB):
            for aspect in reversed(aspects_of(host)):
                run(aspect.to_remove(slot))


def repaired(host: Host, aspects: tuple[Aspect, ...]) -> bool:
    """Repair the node's network as one survey does. Return whether there was nothing to repair."""
    with suppress(HostUnreadable):
        done = run(gateway_of(host).to_apply())
        done += [name for slot in (ALICE, BOB) for a in aspects for name in run(a.to_apply(slice_on(slot)))]
        return done == []
    return False


def test_no_forbidden_frame_reaches_a_neighbour_slice_after_the_virtual_switch_was_killed_and_repaired(
    host: Host, node: LabNode
) -> None:
    with Wire(ALICE.tap) as alice, Wire(BOB.tap) as bob:
        assert alice.ask(arp_request(GATEWAY, mac=ALICE.mac, own=ALICE.ip), is_arp_reply) is not None
        node.kill("ovs-vswitchd")
        eventually(lambda: switch_is_back(host))
        alice.send(Ether(src=ALICE.mac, dst=BOB.mac) / IP(src=ALICE.ip, dst=BOB.ip) / ICMP())
        eventually(lambda: repaired(host, aspects_of(host)))
        assert alice.ask(arp_request(GATEWAY, mac=ALICE.mac, own=ALICE.ip), is_arp_reply) is not None
        assert lease(alice, ALICE.mac) == ALICE.ip
        received: list[Packet] = []

        def is_reply(frame: Packet) -> bool:
            received.append(frame)
            return is_arp_reply(frame)

        # Repeated, like the request of Alice: the new switch detects the carrier of each tap with a delay.
        assert bob.ask(arp_request(GATEWAY, mac=BOB.mac, own=BOB.ip), is_reply) is not None
        door = gateway_mac(GATEWAY)
        assert [frame for frame in received if frame.src != door] == []


def switch_is_back(host: Host) -> bool:
    """Return whether Open vSwitch answers again and has lost all flows of the bridge."""
    with suppress(HostUnreadable):
        return host.switch.flows(NETWORK.bridge) == {}
    return False
