"""Tests that the PCI functions of a host are read correctly from the sysfs trees that `tests.node.pci_trees`
describes.
"""

import os
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from events.values import InvalidValue, PciAddress, pci_address
from node_agent.drivers.sysfs import SysfsPci
from node_agent.host.pci import PciDevice, PciDevices
from node_agent.host.slices import HostRefused, HostUnreadable
from tests.node.pci_trees import lay_out


def devices(tree: str, root: Path) -> PciDevices:
    return SysfsPci(lay_out(tree, root)).devices()


def device(found: PciDevices, address: str) -> PciDevice:
    device = found.find(PciAddress(address))
    assert device is not None
    return device


def test_gpus_nvswitches_and_network_cards_of_an_eight_gpu_host_are_distinguished(tmp_path: Path) -> None:
    kinds = Counter(each.kind for each in devices("hgx", tmp_path))
    assert kinds == {"gpu": 8, "fabric": 9, "vf": 16, "bridge": 8, "other": 4}


def test_gpu_is_read_with_every_property_that_passthrough_needs(tmp_path: Path) -> None:
    assert device(devices("hgx", tmp_path), "0000:d1:00.0") == PciDevice(
        PciAddress("0000:d1:00.0"),
        vendor=0x10DE,
        device=0x2330,
        class_code=0x030200,
        numa_node=1,
        iommu_group="56",
        driver="vfio-pci",
        reset_methods=("flr", "bus"),
    )


def test_nvswitch_in_an_iommu_group_is_not_read_as_a_pci_bridge(tmp_path: Path) -> None:
    assert device(devices("hgx", tmp_path), "0000:07:00.0").kind == "other"


def test_fabric_card_is_read_with_its_virtual_functions_and_its_rdma_device(tmp_path: Path) -> None:
    found = devices("hgx", tmp_path)
    card = device(found, "0000:9a:00.0")
    assert (card.rdma, card.most_virtual_functions) == (("mlx5_4",), 16)
    assert card.virtual_functions == ("0000:9a:00.1", "0000:9a:00.2")
    assert {device(found, vf).physical_function for vf in card.virtual_functions} == {card.address}


def test_ethernet_card_counts_as_a_fabric_device_only_with_an_rdma_device(tmp_path: Path) -> None:
    found = devices("hgx", tmp_path)
    assert device(found, "0000:29:00.0").kind == "fabric"
    assert device(devices("workstation", tmp_path / "other"), "0000:04:00.0").kind == "other"


def test_each_vf_of_a_card_in_switchdev_mode_has_its_own_representor(tmp_path: Path) -> None:
    found = devices("bluefield", tmp_path)
    representors = {
        each.address: found.representor_of(each) for each in found if each.physical_function is not None
    }
    names = {address: netdev.name for address, netdev in representors.items() if netdev is not None}
    assert names == {
        **{PciAddress(f"0000:3b:00.{2 + number}"): f"eth{number}" for number in range(4)},
        **{PciAddress(f"0000:3b:01.{2 + number}"): f"eth{10 + number}" for number in range(4)},
    }


def test_network_link_with_another_switch_id_is_not_read_as_the_representor_of_a_vf(tmp_path: Path) -> None:
    found = devices("bluefield", tmp_path)
    card = device(found, "0000:3b:00.0")
    elsewhere = tuple(
        replace(netdev, switch_id="00") if netdev.name == "eth0" else netdev for netdev in card.netdevs
    )
    moved = PciDevices(replace(each, netdevs=elsewhere) if each == card else each for each in found)
    assert moved.representor_of(device(moved, "0000:3b:00.2")) is None
    assert moved.representor_of(device(moved, "0000:3b:00.3")) is not None


def test_vf_of_a_card_not_in_switchdev_mode_has_no_representor(tmp_path: Path) -> None:
    found = devices("hgx", tmp_path)
    assert found.representor_of(device(found, "0000:9a:00.1")) is None


def test_gpu_in_a_workstation_shares_its_iommu_group_with_its_audio_function_and_its_bridge(
    tmp_path: Path,
) -> None:
    found = devices("workstation", tmp_path)
    group = found.group_of(device(found, "0000:01:00.0"))
    assert {(each.address, each.kind) for each in group} == {
        ("0000:00:01.0", "bridge"),
        ("0000:01:00.0", "gpu"),
        ("0000:01:00.1", "other"),
    }


def test_pci_devices_of_a_host_without_an_iommu_have_no_iommu_group(tmp_path: Path) -> None:
    found = devices("cloud", tmp_path)
    assert {found.group_of(each) for each in found} == {()}
    card = device(found, "0000:00:03.0")
    assert ([netdev.name for netdev in card.netdevs], card.numa_node) == (["eth0"], None)


def test_pci_devices_of_the_machine_that_runs_the_tests_can_be_read() -> None:
    shown = Path("/sys/bus/pci/devices")
    addresses = {path.name for path in shown.iterdir()} if shown.exists() else set()
    assert {each.address for each in SysfsPci(Path("/sys")).devices()} == addresses


def test_host_without_a_pci_bus_has_no_pci_devices(tmp_path: Path) -> None:
    assert tuple(SysfsPci(tmp_path).devices()) == ()


def test_pci_device_that_vanishes_while_it_is_read_is_absent(tmp_path: Path) -> None:
    root = lay_out("workstation", tmp_path)
    (root / "devices/0000:04:00.0/vendor").unlink()
    assert SysfsPci(root).devices().find(PciAddress("0000:04:00.0")) is None


def test_unreadable_pci_device_is_reported_with_its_iommu_group_and_other_devices_stay_readable(
    tmp_path: Path,
) -> None:
    root = lay_out("workstation", tmp_path)
    as_it_was = SysfsPci(root).devices()
    (root / "devices/0000:01:00.0/class").write_text("display\n")
    found = SysfsPci(root).devices()
    gpu = device(found, "0000:01:00.0")
    assert gpu.unread is not None
    assert "display" in gpu.unread
    assert {each.address for each in found.group_of(gpu)} == {"0000:00:01.0", "0000:01:00.0", "0000:01:00.1"}
    assert {*found} - {gpu} == {each for each in as_it_was if each.address != gpu.address}


def test_unreadable_network_card_makes_the_representors_of_its_virtual_functions_unreadable(
    tmp_path: Path,
) -> None:
    root = lay_out("bluefield", tmp_path)
    (root / "devices/0000:3b:00.0/class").write_text("network\n")
    found = SysfsPci(root).devices()
    with pytest.raises(HostUnreadable, match=r"0000:3b:00\.0"):
        found.behind(PciAddress("0000:3b:00.2"))
    with pytest.raises(HostUnreadable, match=r"0000:3b:00\.0"):
        list(found.representors())


def test_pci_device_without_a_reset_method_file_is_read_with_one_unnamed_reset_method(tmp_path: Path) -> None:
    root = lay_out("workstation", tmp_path)
    (root / "devices/0000:04:00.0/reset_method").unlink()
    assert device(SysfsPci(root).devices(), "0000:04:00.0").reset_methods == ("unnamed",)


def test_pci_device_is_reset_through_its_sysfs_file_and_the_reset_is_refused_without_this_file(
    tmp_path: Path,
) -> None:
    root = lay_out("workstation", tmp_path)
    SysfsPci(root).reset(PciAddress("0000:01:00.0"))
    assert (root / "devices/0000:01:00.0/reset").read_text() == "1"
    for without in ("0000:00:00.0", "0000:02:00.0"):
        with pytest.raises(HostRefused, match=without):
            SysfsPci(root).reset(PciAddress(without))


def test_pci_device_is_bound_to_vfio_by_an_override_that_keeps_other_drivers_away(tmp_path: Path) -> None:
    root = lay_out("workstation", tmp_path)
    SysfsPci(root).bind(PciAddress("0000:01:00.0"))
    assert (root / "devices/0000:01:00.0/driver_override").read_text().startswith("vfio-pci")
    assert (root / "bus/pci/drivers/vfio-pci/bind").read_text() == "0000:01:00.0"


def test_pci_device_that_is_taken_from_vfio_has_no_override(tmp_path: Path) -> None:
    root = lay_out("workstation", tmp_path)
    SysfsPci(root).unbind(PciAddress("0000:01:00.0"))
    assert (root / "bus/pci/drivers/vfio-pci/unbind").read_text() == "0000:01:00.0"
    assert (root / "devices/0000:01:00.0/driver_override").read_text().startswith("\n")


def test_pci_device_is_not_bound_on_a_host_without_the_vfio_module(tmp_path: Path) -> None:
    root = lay_out("workstation", tmp_path)
    shutil.rmtree(root / "bus/pci/drivers/vfio-pci")
    with pytest.raises(HostRefused, match="the kernel module vfio-pci is not loaded"):
        SysfsPci(root).bind(PciAddress("0000:01:00.0"))


def test_absent_pci_device_is_neither_bound_nor_unbound(tmp_path: Path) -> None:
    bus, absent = SysfsPci(lay_out("workstation", tmp_path)), PciAddress("0000:09:00.0")
    with pytest.raises(HostRefused, match=r"cannot bind PCI device 0000:09:00\.0 to vfio-pci"):
        bus.bind(absent)
    with pytest.raises(HostRefused, match=r"cannot take PCI device 0000:09:00\.0 from vfio-pci"):
        bus.unbind(absent)


def test_pci_device_reset_that_does_not_end_makes_the_host_unreadable_at_the_deadline(tmp_path: Path) -> None:
    root = lay_out("workstation", tmp_path)
    reset = root / "devices/0000:01:00.0/reset"
    reset.unlink()
    # Opening the pipe blocks until its other end is opened.
    os.mkfifo(reset)
    with pytest.raises(
        HostUnreadable,
        match=r"reset PCI device 0000:01:00\.0: the call to the host did not return within 0\.05 s",
    ):
        SysfsPci(root, reset_seconds=0.05).reset(PciAddress("0000:01:00.0"))
    os.close(os.open(reset, os.O_RDONLY | os.O_NONBLOCK))


@pytest.mark.parametrize("raw", ["0000:1B:00.0", "0000:1b:00.0", "10000:e1:1f.7"])
def test_pci_address_is_normalized_as_sysfs_writes_it(raw: str) -> None:
    assert pci_address(raw) == raw.lower()


@pytest.mark.parametrize("raw", ["1b:00.0", "0000:1b:00.8", "0000:1b:20.0", "00000:1b:00.0", "0000:1b:00.0 "])
def test_invalid_pci_address_is_refused(raw: str) -> None:
    with pytest.raises(InvalidValue, match="PCI address"):
        pci_address(raw)
