"""Tests of the health of PCI functions, which a node reads from sysfs after the release of a slot."""

from pathlib import Path
from typing import Final

import pytest

from events.values import PciAddress, SlotIndex
from node_agent.aspects.devices import read_health_of
from node_agent.drivers.device_files import HostDeviceFiles
from node_agent.drivers.sysfs import SysfsPci
from node_agent.host.host_resources import HostDevice, Place
from node_agent.lab.simulated.host import SimulatedHost
from node_agent.lab.simulated.pci import SimulatedPci, add_pci_devices
from tasks.devices import DeviceReading
from tests.node.hardware_trees import HGX_GPU, Tree, hgx_h200

SLOT: Final = Place((HostDevice(HGX_GPU, "gpu"),))
HEADER: Final = bytes.fromhex("de103523").ljust(64, b"\x00")
AER: Final = "Undefined 0\nDLP 0\nSDES 0\nTLP 0\nFCP 0\nTOTAL_ERR_FATAL {}"


def reading(tree: Tree) -> DeviceReading:
    bus, files = SysfsPci(tree.sysfs), HostDeviceFiles(tree.sysfs, tree.procfs)
    [found] = read_health_of({SlotIndex(0): SLOT}, bus, files)(SlotIndex(0))
    return found


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """The sysfs files of a host with eight GPUs, with the files about link and errors of a healthy PCIe function."""
    tree = hgx_h200(tmp_path)
    (tree.folder(HGX_GPU) / "config").write_bytes(HEADER)
    for folder, speed in ((tree.folder(HGX_GPU), "32.0"), (tree.folder(HGX_GPU).parent, "64.0")):
        for end in ("current", "max"):
            (folder / f"{end}_link_speed").write_text(f"{speed} GT/s PCIe\n")
            (folder / f"{end}_link_width").write_text("16\n")
    tree.write(HGX_GPU, "aer_dev_fatal", AER.format(3))
    tree.write(HGX_GPU, "aer_dev_nonfatal", "TOTAL_ERR_NONFATAL 4")
    return tree


def test_health_reading_of_a_gpu_contains_its_pcie_link_bars_and_error_counters(
    tree: Tree,
) -> None:
    found = reading(tree)
    assert found.model_dump(exclude={"bars"}) == {
        "address": HGX_GPU,
        "responds": True,
        "link_mtps": 32_000,
        "link_width": 16,
        "most_link_mtps": 32_000,
        "most_link_width": 16,
        "fatal_errors": 3,
        "nonfatal_errors": 4,
    }
    assert 262_144 * 2**20 in found.bars


def test_pci_function_with_only_one_bits_in_its_configuration_space_counts_as_not_responding(
    tree: Tree,
) -> None:
    (tree.folder(HGX_GPU) / "config").write_bytes(b"\xff" * 256)
    assert reading(tree).responds is False


def test_virtual_function_with_one_bits_only_in_its_ids_counts_as_responding(tree: Tree) -> None:
    # A virtual function shows FFFF as vendor and device id (PCI Express, single root I/O virtualization).
    (tree.folder(HGX_GPU) / "config").write_bytes(b"\xff" * 4 + HEADER[4:])
    assert reading(tree).responds is True


@pytest.mark.parametrize(("name", "text"), [("current_link_width", "0"), ("current_link_speed", "Unknown")])
def test_link_width_or_speed_of_a_pci_function_that_sysfs_reports_as_unknown_is_none(
    tree: Tree, name: str, text: str
) -> None:
    tree.write(HGX_GPU, name, text)
    assert None in (reading(tree).link_width, reading(tree).link_mtps)


def test_health_of_a_pci_function_that_vanished_states_why_it_could_not_be_read(tree: Tree) -> None:
    tree.vanish(HGX_GPU)
    assert reading(tree) == DeviceReading(
        address=HGX_GPU, unreadable="there is no PCI function at this address"
    )


def test_slot_without_pci_functions_has_no_health_readings(tree: Tree) -> None:
    bus, files = SysfsPci(tree.sysfs), HostDeviceFiles(tree.sysfs, tree.procfs)
    assert read_health_of({}, bus, files)(SlotIndex(0)) == ()


@pytest.mark.parametrize("broken", [False, True])
def test_pci_function_of_a_simulated_host_responds_unless_a_fault_is_injected(broken: bool) -> None:
    host, address = SimulatedHost(), PciAddress(HGX_GPU)
    add_pci_devices(host, [SLOT])
    if broken:
        with host.change() as state:
            state.broken_devices = [address]
    pci = SimulatedPci(host)
    [found] = read_health_of({SlotIndex(0): SLOT}, pci, pci)(SlotIndex(0))
    assert found.responds is not broken
    assert found.link_width == 16
