"""What a node says of the PCI functions that its slots are given, when it is asked what it has."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from events.values import PciAddress
from node_agent.devices import devices_of
from node_agent.host import Prerequisite
from node_agent.lab.simulated.host import SimulatedHost
from node_agent.lab.simulated.links import SimulatedLinks
from node_agent.lab.simulated.pci import SimulatedPci, plug_in
from node_agent.pci import PciDevice
from node_agent.settings import Settings
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


def test_a_device_on_another_node_is_told_and_is_no_fault(host: SimulatedHost) -> None:
    change(host, lambda device: replace(device, numa_node=1))
    told = "1 given to slots; PCI device 0000:1b:00.0 is on NUMA node 1, and the slot on 0"
    assert pci(host) == Prerequisite("pci", ok=True, detail=told)
