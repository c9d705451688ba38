"""Tests with real frames of a slot with an SR-IOV virtual function as its network card. The far end of a veth pair
replaces the virtual function.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from scapy.layers.l2 import ARP

from events.values import SlotIndex
from node_agent.aspects.flows import gateway_mac
from node_agent.host.host_resources import HostDevice, Place
from node_agent.host.slices import Aspect
from tests.contract.network.hosts import Host, aspects_of
from tests.contract.network.slices import GATEWAY, network, run, slice_on
from tests.contract.network.traffic.wire import Capture, FarEnd, arp_request, is_arp_reply, lease
from tests.node.pci_trees import VF

pytestmark = pytest.mark.parametrize(
    "node_host", [pytest.param("real", marks=pytest.mark.node)], indirect=True, scope="module"
)
SLOT, OTHER = network(0), network(1)


@pytest.fixture
def carrying(host: Host, tmp_path: Path) -> Iterator[tuple[Aspect, ...]]:
    """Network of a slice with a virtual function as its network card, set up as ordered, without the
    virtual machine.
    """
    host.plant_representor("eth0", tmp_path)
    aspects = aspects_of(host, {SlotIndex(0): Place((HostDevice(VF, "card"),))})
    for aspect in aspects:
        run(aspect.to_apply(slice_on(SLOT)))
    yield aspects
    remove(aspects)
    host.lose_representor()


@pytest.fixture
def function(carrying: tuple[Aspect, ...]) -> Iterator[FarEnd]:
    from tests.contract.network.lab_host import FAR_END

    with FarEnd(FAR_END) as end:
        yield end


def remove(aspects: tuple[Aspect, ...]) -> None:
    for aspect in reversed(aspects):
        run(aspect.to_remove(SLOT))


def test_guest_on_a_virtual_function_gets_its_dhcp_address_and_its_gateway_answers(function: FarEnd) -> None:
    assert lease(function, SLOT.mac) == SLOT.ip
    answer = function.ask(arp_request(GATEWAY, mac=SLOT.mac, own=SLOT.ip), is_arp_reply)
    assert answer is not None
    assert answer[ARP].hwsrc == gateway_mac(GATEWAY)


def test_frame_with_another_slices_addresses_from_a_virtual_function_is_dropped(function: FarEnd) -> None:
    forged = [
        arp_request(GATEWAY, mac=OTHER.mac, own=SLOT.ip),
        arp_request(GATEWAY, mac=SLOT.mac, own=OTHER.ip),
    ]
    own = arp_request(GATEWAY, mac=SLOT.mac, own=SLOT.ip)
    assert function.ask(own, is_arp_reply) is not None
    with Capture(SLOT.bridge) as gateway:
        for question in (*forged, own):
            function.send(question)
        before = gateway.until(lambda frame: bytes(frame) == bytes(own))
    assert [frame for frame in before if bytes(frame) in map(bytes, forged)] == []
