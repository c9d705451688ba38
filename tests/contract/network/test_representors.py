"""Tests of a slot with an SR-IOV virtual function as its network card. The agent renames the function's representor to
the link name of the slot, and takes this name from it when the slice is removed.

No card in switchdev mode was available. On the real host, a veth link replaces the representor, and the tree of
`tests.node.pci_trees` declares it as the port of a virtual function.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from events.values import SlotIndex
from node_agent.aspects.flows import port_number
from node_agent.aspects.links import LinkAspect, Representor, Tap
from node_agent.aspects.ports import Port
from node_agent.host.host_resources import HostDevice, Place
from node_agent.host.slices import Aspect, HostRefused
from tests.contract.network.hosts import OTHER_BRIDGE, Host, aspects_of
from tests.contract.network.slices import names, network, run, slice_on
from tests.node.pci_trees import VF

SLOT: Final = network(0)
PORT: Final = Port(SLOT.tap, SLOT.bridge, port_number(SLOT.index))
RESTING: Final = Representor("vf0000-3b-00.2", up=False)


@pytest.fixture
def number(host: Host, tmp_path: Path) -> Iterator[int]:
    yield host.plant_representor("eth0", tmp_path)
    for aspect in reversed(aspects_of(host)):
        run(aspect.to_remove(SLOT))
    host.lose_representor()


@pytest.fixture
def aspects(host: Host, number: int) -> tuple[Aspect, ...]:
    return aspects_of(host, {SlotIndex(0): Place((HostDevice(VF, "card"),))})


def apply(aspects: tuple[Aspect, ...]) -> list[str]:
    return [name for aspect in aspects for name in run(aspect.to_apply(slice_on(SLOT)))]


def remove(aspects: tuple[Aspect, ...]) -> list[str]:
    return [name for aspect in reversed(aspects) for name in run(aspect.to_remove(SLOT))]


def remains(aspects: tuple[Aspect, ...]) -> list[str]:
    return [words for aspect in aspects for words in aspect.remains(SLOT)]


def test_representor_of_a_virtual_function_is_the_link_of_its_slot_until_the_release(
    host: Host, number: int, aspects: tuple[Aspect, ...]
) -> None:
    assert apply(aspects)[0] == "link.take"
    assert (host.links.representor(number), host.switch.port(SLOT.tap)) == (Representor(SLOT.tap), PORT)
    assert apply(aspects) == []
    assert remains(aspects) != []
    assert remove(aspects)[-1] == "link.give_back"
    assert remains(aspects) == []
    assert (host.links.representor(number), host.switch.port(SLOT.tap)) == (RESTING, None)
    assert remove(aspects) == []
    assert apply(aspects)[0] == "link.take", "and again for the next slice"
    assert host.links.representor(number) == Representor(SLOT.tap)


def test_representor_with_changed_settings_is_reported_and_gets_its_settings_again(
    host: Host, number: int, aspects: tuple[Aspect, ...]
) -> None:
    apply(aspects)
    host.links.set_representor(number, Representor(SLOT.tap, mtu=1400, up=False))
    (step,) = aspects[0].to_apply(slice_on(SLOT))
    assert step.repairs is not None
    assert step.repairs.kind == "link.changed"
    assert (
        step.repairs.observed
        == f"link slice0, down, 1400 bytes, without ARP and IPv6, of virtual function {VF}"
    )
    step.run()
    assert host.links.representor(number) == Representor(SLOT.tap)


def test_representor_attached_to_another_bridge_is_detached_from_that_bridge(
    host: Host, number: int, aspects: tuple[Aspect, ...]
) -> None:
    apply(aspects)
    host.plant_master(SLOT.tap)
    (step,) = aspects[0].to_apply(slice_on(SLOT))
    assert step.repairs is not None
    assert (
        step.repairs.observed
        == f"link slice0, up, 1500 bytes, without ARP and IPv6, attached to {OTHER_BRIDGE}, of virtual function {VF}"
    )
    step.run()
    assert host.links.representor(number) == Representor(SLOT.tap)


def test_renamed_representor_gets_its_name_and_its_ovs_port_again(
    host: Host, number: int, aspects: tuple[Aspect, ...]
) -> None:
    apply(aspects)
    host.links.set_representor(number, Representor("eth7"))
    assert apply(aspects)[0] == "link.take"
    assert (host.links.representor(number), host.switch.port(SLOT.tap)) == (Representor(SLOT.tap), PORT)
    assert apply(aspects) == []


def test_virtual_function_without_a_representor_is_reported_and_refused(
    host: Host, number: int, aspects: tuple[Aspect, ...]
) -> None:
    apply(aspects)
    host.lose_representor()
    aspects = aspects_of(host, {SlotIndex(0): Place((HostDevice(VF, "card"),))})
    (step,) = aspects[0].to_apply(slice_on(SLOT))
    assert step.repairs is not None
    assert (step.repairs.kind, step.repairs.observed) == ("link.absent", f"no link, of virtual function {VF}")
    with pytest.raises(HostRefused, match=rf"{VF} has no representor"):
        step.run()
    assert "port.delete" in remove(aspects)
    assert remains(aspects) == []


def test_link_of_a_slot_changes_from_tap_to_virtual_function_and_back_with_the_slots_settings(
    host: Host, number: int, aspects: tuple[Aspect, ...]
) -> None:
    on_tap = LinkAspect(host.links, host.bus)
    assert run(on_tap.to_apply(slice_on(SLOT))) == ["link.add_tap"]
    assert run(aspects[0].to_apply(slice_on(SLOT))) == ["link.delete", "link.take"]
    assert run(on_tap.to_apply(slice_on(SLOT))) == ["link.give_back", "link.add_tap"]
    assert (host.links.link(SLOT.tap), host.links.representor(number)) == (Tap(SLOT.tap), RESTING)


def test_foreign_link_with_the_name_of_a_slots_link_is_deleted_before_the_representor_gets_this_name(
    host: Host, number: int, aspects: tuple[Aspect, ...]
) -> None:
    host.plant_link(SLOT.tap)
    with pytest.raises(HostRefused, match="slice0"):
        host.links.set_representor(number, Representor(SLOT.tap))
    assert names(aspects[0].to_apply(slice_on(SLOT))) == ["link.delete", "link.take"]
    run(aspects[0].to_apply(slice_on(SLOT)))
    assert host.links.representor(number) == Representor(SLOT.tap)


def test_changing_the_settings_of_an_absent_representor_is_refused(host: Host) -> None:
    assert host.links.representor(4711) is None
    with pytest.raises(HostRefused, match="4711"):
        host.links.set_representor(4711, Representor("slice0"))
