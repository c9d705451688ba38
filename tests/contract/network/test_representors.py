"""A slot whose card is a virtual function: its representor is taken under the slot's name, and given back.

No card that switches was at hand: on the real host a veth is in its place, which is a link of the kernel as well, and
the tree of `tests.node.pci_trees` says that it is the port of a virtual function.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from events.values import SlotIndex
from node_agent.flows import port_number
from node_agent.links import LinkAspect, Representor, Tap
from node_agent.places import HostDevice, Place
from node_agent.ports import Port
from node_agent.slices import Aspect, HostRefused
from tests.contract.network.hosts import THIEF, Host, aspects_of
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


def test_a_representor_is_the_slots_link_from_order_to_release(
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


def test_a_representor_that_somebody_changed_is_set_again(
    host: Host, number: int, aspects: tuple[Aspect, ...]
) -> None:
    apply(aspects)
    host.links.set_representor(number, Representor(SLOT.tap, mtu=1400, up=False))
    (step,) = aspects[0].to_apply(slice_on(SLOT))
    assert step.mends is not None
    assert step.mends.kind == "link.changed"
    assert step.mends.found == f"link slice0, down, 1400 bytes, mute, of virtual function {VF}"
    step.run()
    assert host.links.representor(number) == Representor(SLOT.tap)


def test_a_representor_that_another_bridge_holds_is_taken_from_it(
    host: Host, number: int, aspects: tuple[Aspect, ...]
) -> None:
    apply(aspects)
    host.plant_master(SLOT.tap)
    (step,) = aspects[0].to_apply(slice_on(SLOT))
    assert step.mends is not None
    assert step.mends.found == f"link slice0, up, 1500 bytes, mute, held by {THIEF}, of virtual function {VF}"
    step.run()
    assert host.links.representor(number) == Representor(SLOT.tap)


def test_a_representor_that_somebody_renamed_gets_its_name_and_its_port_again(
    host: Host, number: int, aspects: tuple[Aspect, ...]
) -> None:
    apply(aspects)
    host.links.set_representor(number, Representor("eth7"))
    assert apply(aspects)[0] == "link.take"
    assert (host.links.representor(number), host.switch.port(SLOT.tap)) == (Representor(SLOT.tap), PORT)
    assert apply(aspects) == []


def test_a_virtual_function_without_a_representor_is_told_and_refused(
    host: Host, number: int, aspects: tuple[Aspect, ...]
) -> None:
    apply(aspects)
    host.lose_representor()
    aspects = aspects_of(host, {SlotIndex(0): Place((HostDevice(VF, "card"),))})
    (step,) = aspects[0].to_apply(slice_on(SLOT))
    assert step.mends is not None
    assert (step.mends.kind, step.mends.found) == ("link.absent", f"no link, of virtual function {VF}")
    with pytest.raises(HostRefused, match=rf"{VF} has no representor"):
        step.run()
    assert "port.delete" in remove(aspects)
    assert remains(aspects) == []


def test_a_slots_link_follows_its_settings_from_tap_to_function_and_back(
    host: Host, number: int, aspects: tuple[Aspect, ...]
) -> None:
    on_tap = LinkAspect(host.links, host.bus)
    assert run(on_tap.to_apply(slice_on(SLOT))) == ["link.add_tap"]
    assert run(aspects[0].to_apply(slice_on(SLOT))) == ["link.delete", "link.take"]
    assert run(on_tap.to_apply(slice_on(SLOT))) == ["link.give_back", "link.add_tap"]
    assert (host.links.link(SLOT.tap), host.links.representor(number)) == (Tap(SLOT.tap), RESTING)


def test_whoever_bears_the_name_goes_before_the_representor_gets_it(
    host: Host, number: int, aspects: tuple[Aspect, ...]
) -> None:
    host.plant_link(SLOT.tap)
    with pytest.raises(HostRefused, match="slice0"):
        host.links.set_representor(number, Representor(SLOT.tap))
    assert names(aspects[0].to_apply(slice_on(SLOT))) == ["link.delete", "link.take"]
    run(aspects[0].to_apply(slice_on(SLOT)))
    assert host.links.representor(number) == Representor(SLOT.tap)


def test_a_link_that_is_not_there_cannot_be_set(host: Host) -> None:
    assert host.links.representor(4711) is None
    with pytest.raises(HostRefused, match="4711"):
        host.links.set_representor(4711, Representor("slice0"))
