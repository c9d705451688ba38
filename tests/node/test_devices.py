"""What a node says of the PCI functions that its slots are given, when it is asked what it has."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from events.values import PciAddress
from node_agent.devices import devices_of, lost_devices
from node_agent.host import Prerequisite
from node_agent.lab.simulated.host import SimulatedHost
from node_agent.lab.simulated.links import SimulatedLinks
from node_agent.lab.simulated.pci import SimulatedPci, plug_in
from node_agent.links import Representor
from node_agent.pci import PciDevice
from node_agent.settings import Settings
from node_agent.slices import Difference, HostRefused
from tests.node.settings import SLOT, settings

GPU: Final = PciAddress("0000:1b:00.0")
SLOTS: Final = settings({**SLOT, "gpus": [GPU], "numa_node": 0})


@pytest.fixture
def host() -> SimulatedHost:
    host = SimulatedHost()
    plug_in(host, SLOTS.places.values())
    return host


def pci(host: SimulatedHost, told: Settings = SLOTS) -> Prerequisite:
    _vf, _bf3, pci = devices_of(told, SimulatedLinks(host), SimulatedPci(host))()
    return pci


def change(host: SimulatedHost, changed: Callable[[PciDevice], PciDevice]) -> None:
    with host.change() as state:
        state.pci = [changed(each) for each in state.pci]


def test_where_no_slot_is_given_any_there_is_nothing_to_look_at(host: SimulatedHost) -> None:
    assert pci(host, settings(SLOT)) == Prerequisite("pci", ok=True, detail="not configured")


def test_devices_that_a_machine_could_have_are_counted(host: SimulatedHost) -> None:
    assert pci(host) == Prerequisite("pci", ok=True, detail="1 given to slots")


def test_what_no_machine_could_have_is_told_with_its_reason(host: SimulatedHost) -> None:
    change(host, lambda device: replace(device, driver="nvidia"))
    told = "1 given to slots; PCI device 0000:1b:00.0 is bound to nvidia"
    assert pci(host) == Prerequisite("pci", ok=False, detail=told)


def test_a_device_that_cannot_be_read_is_its_slots_fault_alone(host: SimulatedHost) -> None:
    other = PciAddress("0000:1c:00.0")
    two = settings({**SLOT, "gpus": [GPU]}, {**SLOT, "index": 1, "gpus": [other]})
    plug_in(host, two.places.values())
    change(host, lambda device: replace(device, unread="EIO") if device.address == GPU else device)
    found = f"PCI device {GPU} cannot be read: EIO"
    assert pci(host, two) == Prerequisite("pci", ok=False, detail=f"2 given to slots; {found}")
    lost = lost_devices(two.places, SimulatedPci(host).devices())
    assert {slot: [each.found for each in of] for slot, of in lost.items()} == {0: [found], 1: []}


def test_a_driver_for_guests_may_be_made_for_one_makers_functions(host: SimulatedHost) -> None:
    change(host, lambda device: replace(device, driver="nvgrace_gpu_vfio_pci"))
    assert pci(host).ok


def test_a_device_on_another_node_is_told_and_is_no_fault(host: SimulatedHost) -> None:
    change(host, lambda device: replace(device, numa_node=1))
    told = "1 given to slots; PCI device 0000:1b:00.0 is on NUMA node 1, and the slot on 0"
    assert pci(host) == Prerequisite("pci", ok=True, detail=told)


def test_a_virtual_function_is_a_card_as_long_as_its_card_switches(host: SimulatedHost) -> None:
    told = settings({**SLOT, "vf": "0000:3b:00.2"}, {**SLOT, "index": 1, "vf": "0000:3b:00.3"})
    plug_in(host, told.places.values())
    assert pci(host, told) == Prerequisite("pci", ok=True, detail="2 given to slots")
    change(host, lambda device: replace(device, netdevs=device.netdevs[:2]))
    why = "PCI device 0000:3b:00.3 has no representor: its card is not in switchdev mode"
    assert pci(host, told) == Prerequisite("pci", ok=False, detail=f"2 given to slots; {why}")
    lost = lost_devices(told.places, SimulatedPci(host).devices())
    assert lost == {0: (), 1: (Difference("slot.device", "card at 0000:3b:00.3", why),)}


def test_a_card_that_cannot_be_read_is_the_fault_of_its_functions_slots_alone(host: SimulatedHost) -> None:
    told = settings({**SLOT, "vf": "0000:3b:00.2"}, {**SLOT, "index": 1, "gpus": [GPU]})
    plug_in(host, told.places.values())
    (card,) = {each.physical_function for each in SimulatedPci(host).devices() if each.kind == "vf"}
    change(host, lambda device: replace(device, unread="EIO") if device.address == card else device)
    why = f"PCI device 0000:3b:00.2 cannot be read: PCI device {card}: EIO"
    assert pci(host, told) == Prerequisite("pci", ok=False, detail=f"2 given to slots; {why}")
    lost = lost_devices(told.places, SimulatedPci(host).devices())
    assert lost == {0: (Difference("slot.device", "card at 0000:3b:00.2", why),), 1: ()}


def test_a_card_that_switches_is_still_there_when_the_agent_starts_again(tmp_path: Path) -> None:
    places = settings({**SLOT, "vf": "0000:3b:00.2"}).places.values()
    number = 1000
    plug_in(SimulatedHost(tmp_path / "host"), places)
    SimulatedLinks(SimulatedHost(tmp_path / "host")).set_representor(number, Representor("slice0"))
    plug_in(host := SimulatedHost(tmp_path / "host"), places)
    assert SimulatedLinks(host).representor(number) == Representor("slice0")
    assert SimulatedPci(host).devices().behind(PciAddress("0000:3b:00.2")) == number
    with pytest.raises(HostRefused, match="not supported"):
        SimulatedLinks(host).delete_link("slice0")
