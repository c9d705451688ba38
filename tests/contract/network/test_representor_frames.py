"""Real frames of a slot whose card is a virtual function: a veth's far end is the function's, as a guest has it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from scapy.layers.l2 import ARP

from events.values import SlotIndex
from node_agent.flows import gateway_mac
from node_agent.places import HostDevice, Place
from node_agent.slices import Aspect
from tests.contract.network.hosts import Host, aspects_of
from tests.contract.network.slices import GATEWAY, network, run, slice_on
from tests.contract.network.wire import Ear, FarEnd, is_arp_reply, lease, who_has
from tests.node.pci_trees import VF

pytestmark = pytest.mark.parametrize(
    "node_host", [pytest.param("real", marks=pytest.mark.node)], indirect=True, scope="module"
)
SLOT, OTHER = network(0), network(1)


@pytest.fixture
def carrying(host: Host, tmp_path: Path) -> Iterator[tuple[Aspect, ...]]:
    """The slot's slice as ordered, up to its machine."""
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


def test_a_guest_gets_its_address_and_its_gateway_answers(function: FarEnd) -> None:
    assert lease(function, SLOT.mac) == SLOT.ip
    answer = function.ask(who_has(GATEWAY, mac=SLOT.mac, own=SLOT.ip), is_arp_reply)
    assert answer is not None
    assert answer[ARP].hwsrc == gateway_mac(GATEWAY)


def test_who_speaks_in_anothers_name_behind_the_function_is_not_heard(function: FarEnd) -> None:
    forged = [who_has(GATEWAY, mac=OTHER.mac, own=SLOT.ip), who_has(GATEWAY, mac=SLOT.mac, own=OTHER.ip)]
    own = who_has(GATEWAY, mac=SLOT.mac, own=SLOT.ip)
    assert function.ask(own, is_arp_reply) is not None
    with Ear(SLOT.bridge) as gateway:
        for question in (*forged, own):
            function.send(question)
        before = gateway.until(lambda frame: bytes(frame) == bytes(own))
    assert [frame for frame in before if bytes(frame) in map(bytes, forged)] == []
