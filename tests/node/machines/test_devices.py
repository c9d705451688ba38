"""Tests of the prerequisite check of a node for the PCI functions of its slots."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from events.values import PciAddress
from node_agent.aspects.devices import describe_devices_of, devices_of, lost_devices
from node_agent.aspects.links import Representor
from node_agent.host.host import Prerequisite
from node_agent.host.pci import PciDevice
from node_agent.host.slices import Difference, HostRefused
from node_agent.lab.simulated.host import SimulatedHost
from node_agent.lab.simulated.links import SimulatedLinks
from node_agent.lab.simulated.pci import SimulatedPci, add_pci_devices
from node_agent.settings import Settings
from tasks.devices import FoundFabric
from tests.node.settings import SLOT, settings

GPU: Final = PciAddress("0000:1b:00.0")
SLOTS: Final = settings({**SLOT, "gpus": [GPU], "numa_node": 0})


@pytest.fixture
def host() -> SimulatedHost:
    host = SimulatedHost()
    add_pci_devices(host, SLOTS.places.values())
    return host


def pci(host: SimulatedHost, node_settings: Settings = SLOTS) -> Prerequisite:
    _vf, _bf3, pci = devices_of(node_settings, SimulatedLinks(host), SimulatedPci(host))()
    return pci


def change(host: SimulatedHost, changed: Callable[[PciDevice], PciDevice]) -> None:
    with host.change() as state:
        state.pci = [changed(each) for each in state.pci]


def test_pci_prerequisite_of_a_node_without_devices_in_its_slots_is_reported_as_not_configured(
    host: SimulatedHost,
) -> None:
    assert pci(host, settings(SLOT)) == Prerequisite("pci", ok=True, detail="not configured")


def test_pci_prerequisite_with_usable_devices_reports_their_number(host: SimulatedHost) -> None:
    assert pci(host) == Prerequisite("pci", ok=True, detail="PCI devices of slots: 1")


def test_unusable_pci_device_of_a_slot_is_reported_with_its_reason(host: SimulatedHost) -> None:
    change(host, lambda device: replace(device, driver="nvidia"))
    detail = "PCI devices of slots: 1; PCI device 0000:1b:00.0 is bound to nvidia"
    assert pci(host) == Prerequisite("pci", ok=False, detail=detail)


def test_unreadable_pci_device_is_reported_as_lost_only_for_its_own_slot(host: SimulatedHost) -> None:
    other = PciAddress("0000:1c:00.0")
    two = settings({**SLOT, "gpus": [GPU]}, {**SLOT, "index": 1, "gpus": [other]})
    add_pci_devices(host, two.places.values())
    change(host, lambda device: replace(device, unread="EIO") if device.address == GPU else device)
    found = f"PCI device {GPU} cannot be read: EIO"
    assert pci(host, two) == Prerequisite("pci", ok=False, detail=f"PCI devices of slots: 2; {found}")
    lost = lost_devices(two.places, SimulatedPci(host).devices())
    assert {slot: [each.observed for each in of] for slot, of in lost.items()} == {0: [found], 1: []}


def test_pci_device_bound_to_a_vendor_specific_vfio_driver_is_accepted(host: SimulatedHost) -> None:
    change(host, lambda device: replace(device, driver="nvgrace_gpu_vfio_pci"))
    assert pci(host).ok


def test_pci_device_on_another_numa_node_than_its_slots_memory_is_reported_and_is_not_a_failure(
    host: SimulatedHost,
) -> None:
    change(host, lambda device: replace(device, numa_node=1))
    detail = (
        "PCI devices of slots: 1; PCI device 0000:1b:00.0 is on NUMA node 1, "
        "but the slot's memory is on NUMA node 0"
    )
    assert pci(host) == Prerequisite("pci", ok=True, detail=detail)


def test_virtual_function_is_reported_as_lost_once_its_network_card_leaves_switchdev_mode(
    host: SimulatedHost,
) -> None:
    node_settings = settings({**SLOT, "vf": "0000:3b:00.2"}, {**SLOT, "index": 1, "vf": "0000:3b:00.3"})
    add_pci_devices(host, node_settings.places.values())
    assert pci(host, node_settings) == Prerequisite("pci", ok=True, detail="PCI devices of slots: 2")
    change(host, lambda device: replace(device, netdevs=device.netdevs[:2]))
    reason = "PCI device 0000:3b:00.3 has no representor: its card is not in switchdev mode"
    assert pci(host, node_settings) == Prerequisite(
        "pci", ok=False, detail=f"PCI devices of slots: 2; {reason}"
    )
    lost = lost_devices(node_settings.places, SimulatedPci(host).devices())
    assert lost == {0: (), 1: (Difference("slot.device", "card at 0000:3b:00.3", reason),)}


def test_unreadable_network_card_is_a_lost_device_only_for_slots_with_its_virtual_functions(
    host: SimulatedHost,
) -> None:
    node_settings = settings({**SLOT, "vf": "0000:3b:00.2"}, {**SLOT, "index": 1, "gpus": [GPU]})
    add_pci_devices(host, node_settings.places.values())
    (card,) = {each.physical_function for each in SimulatedPci(host).devices() if each.kind == "vf"}
    change(host, lambda device: replace(device, unread="EIO") if device.address == card else device)
    reason = f"PCI device 0000:3b:00.2 cannot be read: cannot read PCI device {card}: EIO"
    assert pci(host, node_settings) == Prerequisite(
        "pci", ok=False, detail=f"PCI devices of slots: 2; {reason}"
    )
    lost = lost_devices(node_settings.places, SimulatedPci(host).devices())
    assert lost == {0: (Difference("slot.device", "card at 0000:3b:00.2", reason),), 1: ()}


def test_representor_of_a_simulated_network_card_persists_over_a_restart_of_the_agent(tmp_path: Path) -> None:
    places = settings({**SLOT, "vf": "0000:3b:00.2"}).places.values()
    number = 1000
    add_pci_devices(SimulatedHost(tmp_path / "host"), places)
    SimulatedLinks(SimulatedHost(tmp_path / "host")).set_representor(number, Representor("slice0"))
    add_pci_devices(host := SimulatedHost(tmp_path / "host"), places)
    assert SimulatedLinks(host).representor(number) == Representor("slice0")
    assert SimulatedPci(host).devices().behind(PciAddress("0000:3b:00.2")) == number
    with pytest.raises(HostRefused, match="not supported"):
        SimulatedLinks(host).delete_link("slice0")


def test_simulated_host_describes_the_facts_about_the_pci_devices_of_its_slots() -> None:
    card = PciAddress("0000:18:00.1")
    places = settings({**SLOT, "gpus": [GPU], "vf": card, "numa_node": 0}).places
    host = SimulatedHost()
    add_pci_devices(host, places.values())
    bus = SimulatedPci(host)
    described = describe_devices_of(places, bus)(bus.devices())
    gpu, vf = described["gpu", GPU], described["card", card]
    assert (gpu.model, gpu.bar_mib, gpu.root_port) == ("NVIDIA H100 SXM5 80GB", 128 * 1024, "0000:1b:1f.0")
    assert (vf.vf_number, vf.representor) == (0, "pf0vf0")
    assert vf.fabric_metadata == FoundFabric(
        link_layer="ethernet", port_state="active", physical_state="link_up"
    )
