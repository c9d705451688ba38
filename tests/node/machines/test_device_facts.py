"""Facts about the PCI functions of slots, from the hosts that `tests.node.hardware_trees` builds."""

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.values import PciAddress, SlotIndex
from node_agent.aspects.devices import describe_devices_of
from node_agent.drivers.device_files import HostDeviceFiles
from node_agent.drivers.sysfs import SysfsPci
from node_agent.host.device_facts import PCI_FOLDER, FactsUnread, describe_device
from node_agent.host.device_texts import largest_bar, nvidia_fields, rate_mbit, root_port, state_word
from node_agent.host.host_resources import HostDevice, Place, Use
from node_agent.host.pci import PciDevice, PciDevices, PciKind
from tasks.devices import FoundDevice, FoundFabric
from tests.node.hardware_trees import (
    CARD_VFS,
    HGX_CARD,
    HGX_GPU,
    Tree,
    bluefield3,
    ethernet_only,
    gpu_regions,
    hgx_h200,
    hgx_h200_roce,
)
from tests.waiting import until

GPU_UUID = "GPU-9221d5d1-b60b-a624-bf14-0a1819cfda3b"
GIB = 1024**3


def described(tree: Tree, use: Use, address: str) -> FoundDevice:
    """Return the description of a PCI function, as the agent of this host reads and reports it."""
    function = HostDevice(PciAddress(address), use)
    return described_slot(tree, function)[use, function.address]


def described_slot(tree: Tree, *functions: HostDevice) -> Mapping[tuple[Use, PciAddress], FoundDevice]:
    """Return the descriptions of all PCI functions of a slot, by use and address."""
    places = {SlotIndex(0): Place(devices=functions)}
    describe = describe_devices_of(places, HostDeviceFiles(tree.sysfs, tree.procfs))
    return describe(SysfsPci(tree.sysfs).devices())


def evidence(device: FoundDevice) -> dict[str, str]:
    return {each.path: each.value for each in device.evidence}


def fabric(device: FoundDevice) -> FoundFabric:
    assert device.fabric_metadata is not None
    return device.fabric_metadata


def test_gpu_of_an_hgx_host_is_described_with_model_memory_bar_and_place(tmp_path: Path) -> None:
    gpu = described(hgx_h200(tmp_path), "gpu", HGX_GPU)
    assert gpu.model_dump(exclude={"evidence"}, exclude_none=True) == {
        "address": HGX_GPU,
        "use": "gpu",
        "number": "10de:2335",
        "kind": "gpu",
        "numa_node": 1,
        "model": "NVIDIA H200 SXM 141GB",
        "memory_mib": 143771,
        "bar_mib": 262144,
        "iommu_group": "107",
        "root_port": "0000:97:01.0",
    }


def test_model_and_uuid_of_a_gpu_come_from_the_nvidia_driver_if_it_is_loaded(tmp_path: Path) -> None:
    tree = hgx_h200(tmp_path)
    tree.load_nvidia_driver(HGX_GPU, "NVIDIA H200", GPU_UUID)
    gpu = described(tree, "gpu", HGX_GPU)
    assert (gpu.model, gpu.uuid, gpu.memory_mib) == ("NVIDIA H200", GPU_UUID, 143771)
    assert (
        evidence(gpu)[f"/proc/driver/nvidia/gpus/{HGX_GPU}/information"]
        == f"Model: NVIDIA H200; GPU UUID: {GPU_UUID}"
    )


def test_gpu_of_an_unknown_model_is_described_without_model_and_memory(tmp_path: Path) -> None:
    tree = hgx_h200(tmp_path)
    tree.write(HGX_GPU, "device", "0xfffe")
    gpu = described(tree, "gpu", HGX_GPU)
    assert (gpu.number, gpu.model, gpu.memory_mib, gpu.bar_mib) == ("10de:fffe", None, None, 262144)


def test_each_gpu_of_an_hgx_host_shares_its_root_port_and_numa_node_with_one_network_card(
    tmp_path: Path,
) -> None:
    tree = hgx_h200(tmp_path)
    kinds: dict[PciKind, Use] = {"gpu": "gpu", "fabric": "fabric"}
    functions = [
        HostDevice(each.address, kinds[each.kind])
        for each in SysfsPci(tree.sysfs).devices()
        if each.kind in kinds
    ]
    pairs: dict[tuple[str | None, int | None], list[str]] = {}
    for (use, _), found in described_slot(tree, *functions).items():
        pairs.setdefault((found.root_port, found.numa_node), []).append(use)
    assert {*map(tuple, map(sorted, pairs.values()))} == {("fabric", "gpu")}
    assert sorted(node for _, node in pairs if node is not None) == [0, 0, 0, 0, 1, 1, 1, 1]


def test_infiniband_card_is_described_with_link_rdma_device_and_port(tmp_path: Path) -> None:
    card = described(hgx_h200(tmp_path), "fabric", HGX_CARD)
    assert (card.model, card.kind, card.root_port) == ("Mellanox ConnectX-7", "fabric", "0000:97:01.0")
    assert fabric(card) == FoundFabric(
        link_layer="infiniband",
        rdma_device="mlx5_4",
        port_state="active",
        physical_state="link_up",
        rate_mbit=400_000,
        mtu=4092,
        guid="b83f:d203:00a1:b204",
    )


def test_evidence_of_an_infiniband_card_names_the_files_that_state_its_facts(tmp_path: Path) -> None:
    card = described(hgx_h200(tmp_path), "fabric", HGX_CARD)
    folder = f"/sys/bus/pci/devices/{HGX_CARD}"
    assert evidence(card) == {
        folder: f"/sys/devices/pci0000:97/0000:97:01.0/0000:98:00.0/0000:99:01.0/{HGX_CARD}",
        f"{folder}/vendor": "0x15b3",
        f"{folder}/device": "0x1021",
        f"{folder}/class": "0x020700",
        f"{folder}/numa_node": "1",
        f"{folder}/iommu_group": "304",
        f"{folder}/infiniband/mlx5_4/node_guid": "b83f:d203:00a1:b204",
        f"{folder}/infiniband/mlx5_4/ports/1/link_layer": "InfiniBand",
        f"{folder}/infiniband/mlx5_4/ports/1/state": "4: ACTIVE",
        f"{folder}/infiniband/mlx5_4/ports/1/phys_state": "5: LinkUp",
        f"{folder}/infiniband/mlx5_4/ports/1/rate": "400 Gb/sec (4X NDR)",
        f"{folder}/net/ibp155s0/mtu": "4092",
    }


def test_evidence_of_a_network_card_quotes_the_content_of_the_named_host_files(tmp_path: Path) -> None:
    tree = hgx_h200(tmp_path)
    for path, value in evidence(described(tree, "fabric", HGX_CARD)).items():
        file = tree.sysfs / path.removeprefix("/sys/")
        shown = (
            file.read_text().strip()
            if file.is_file()
            else f"/sys/{file.resolve().relative_to(tree.sysfs.resolve())}"
            if file.exists()
            else file.readlink().name
        )
        assert shown == value


def test_roce_card_is_described_with_ethernet_as_its_link_layer_and_with_an_rdma_device(
    tmp_path: Path,
) -> None:
    card = described(hgx_h200_roce(tmp_path), "fabric", HGX_CARD)
    assert fabric(card) == FoundFabric(
        link_layer="ethernet",
        rdma_device="mlx5_4",
        port_state="active",
        physical_state="link_up",
        rate_mbit=400_000,
        mtu=9000,
        guid="b83f:d203:00a1:b204",
        mac="b8:3f:d2:a1:b2:04",
    )


@pytest.mark.parametrize(("build", "expected"), [(hgx_h200, "infiniband"), (hgx_h200_roce, "ethernet")])
def test_link_layer_of_a_card_reserved_for_guests_follows_from_its_class(
    build: Callable[[Path], Tree], expected: str, tmp_path: Path
) -> None:
    tree = build(tmp_path)
    tree.remove(HGX_CARD, "infiniband", "net")
    tree.write(HGX_CARD, "driver", "-> ../../bus/pci/drivers/vfio-pci")
    card = described(tree, "fabric", HGX_CARD)
    assert fabric(card).model_dump(exclude_none=True) == {"link_layer": expected}
    assert f"{PCI_FOLDER}/{HGX_CARD}/class" in evidence(card)


def test_virtual_function_reserved_for_guests_is_described_by_the_port_of_its_physical_function(
    tmp_path: Path,
) -> None:
    card = described(bluefield3(tmp_path), "card", CARD_VFS[2])
    assert (card.kind, card.physical_function, card.vf_number, card.representor) == (
        "vf",
        "0000:3b:00.0",
        2,
        "pf0vf2",
    )
    assert fabric(card) == FoundFabric(
        link_layer="ethernet",
        port_state="active",
        physical_state="link_up",
        rate_mbit=200_000,
        mtu=9000,
    )
    parent = "/sys/bus/pci/devices/0000:3b:00.0"
    assert evidence(card).items() >= {
        (f"{PCI_FOLDER}/{CARD_VFS[2]}/physfn", "0000:3b:00.0"),
        (f"{parent}/virtfn2", CARD_VFS[2]),
        (f"{parent}/net/*/phys_port_name", "pf0vf2"),
        (f"{parent}/infiniband/mlx5_0/ports/1/rate", "200 Gb/sec (4X HDR)"),
        (f"{parent}/net/enp59s0f0np0/mtu", "9000"),
    }


def test_virtual_function_with_a_host_driver_has_an_rdma_device_and_a_mac_of_its_own(tmp_path: Path) -> None:
    tree = bluefield3(tmp_path)
    tree.write(CARD_VFS[0], "infiniband/mlx5_2/node_guid", "0000:0000:0000:0000")
    tree.write(CARD_VFS[0], "infiniband/mlx5_2/ports/1/link_layer", "Ethernet")
    tree.write(CARD_VFS[0], "infiniband/mlx5_2/ports/1/state", "1: DOWN")
    tree.write(CARD_VFS[0], "net/enp59s0f0v0/address", "02:11:22:33:44:55")
    tree.write(CARD_VFS[0], "net/enp59s0f0v0/mtu", "1500")
    found = fabric(described(tree, "card", CARD_VFS[0]))
    assert (found.rdma_device, found.port_state, found.mac, found.mtu) == (
        "mlx5_2",
        "down",
        "02:11:22:33:44:55",
        1500,
    )


def test_description_of_a_virtual_function_does_not_change_when_its_representor_is_renamed(
    tmp_path: Path,
) -> None:
    tree = bluefield3(tmp_path)
    before = described(tree, "card", CARD_VFS[0])
    links = tree.folder("0000:3b:00.0") / "net"
    (links / "eth0").rename(links / "slice0")
    assert described(tree, "card", CARD_VFS[0]) == before


def test_management_function_and_link_of_a_bluefield_card_are_not_described_as_fabric(tmp_path: Path) -> None:
    tree = bluefield3(tmp_path)
    found = SysfsPci(tree.sysfs).devices().find(PciAddress("0000:3b:00.2"))
    assert found is not None
    assert (found.kind, found.netdevs) == ("other", ())
    assert described(tree, "fabric", "0000:3b:00.2").fabric_metadata is None


def test_ethernet_card_without_rdma_is_described_by_its_network_link(tmp_path: Path) -> None:
    card = described(ethernet_only(tmp_path), "fabric", "0000:41:00.0")
    assert (card.kind, card.model) == ("other", None)
    assert fabric(card) == FoundFabric(
        link_layer="ethernet", port_state="up", rate_mbit=100_000, mtu=1500, mac="b4:96:91:aa:bb:cc"
    )


def test_virtual_function_of_an_ethernet_card_without_switchdev_mode_has_no_representor(
    tmp_path: Path,
) -> None:
    vf = described(ethernet_only(tmp_path), "card", "0000:41:01.0")
    assert (vf.physical_function, vf.vf_number, vf.representor) == ("0000:41:00.0", 0, None)
    assert fabric(vf) == FoundFabric(link_layer="ethernet", port_state="up", rate_mbit=100_000, mtu=1500)


def test_pci_function_that_vanished_is_described_without_facts(tmp_path: Path) -> None:
    tree = hgx_h200(tmp_path)
    tree.vanish(HGX_GPU)
    assert described(tree, "gpu", HGX_GPU) == FoundDevice(
        address=HGX_GPU, use="gpu", number=None, kind=None, numa_node=None
    )


def test_unreadable_pci_function_is_described_with_the_reason(tmp_path: Path) -> None:
    tree = hgx_h200(tmp_path)
    tree.write(HGX_GPU, "class", "display")
    gpu = described(tree, "gpu", HGX_GPU)
    assert (gpu.number, gpu.kind) == (None, None)
    assert gpu.unreadable is not None
    assert "display" in gpu.unreadable


def test_changed_gpu_uuid_and_changed_link_layer_change_the_description_of_the_devices(
    tmp_path: Path,
) -> None:
    tree = hgx_h200(tmp_path)
    tree.load_nvidia_driver(HGX_GPU, "NVIDIA H200", GPU_UUID)
    gpu, card = described(tree, "gpu", HGX_GPU), described(tree, "fabric", HGX_CARD)
    tree.load_nvidia_driver(HGX_GPU, "NVIDIA H200", GPU_UUID.replace("9221", "1234"))
    tree.write(HGX_CARD, "class", "0x020000")
    tree.write(HGX_CARD, "infiniband/mlx5_4/ports/1/link_layer", "Ethernet")
    changed_gpu, changed_card = described(tree, "gpu", HGX_GPU), described(tree, "fabric", HGX_CARD)
    assert (gpu.uuid, changed_gpu.uuid) == (GPU_UUID, GPU_UUID.replace("9221", "1234"))
    assert (fabric(card).link_layer, fabric(changed_card).link_layer) == ("infiniband", "ethernet")


def test_pci_function_with_files_that_hang_is_unreadable_and_does_not_affect_other_functions(
    tmp_path: Path,
) -> None:
    tree = hgx_h200(tmp_path)
    state = tree.folder(HGX_CARD) / "infiniband/mlx5_4/ports/1/state"
    state.unlink()
    # Opening the pipe blocks until its other end is opened, as a command to firmware that does not answer.
    os.mkfifo(state)
    files = HostDeviceFiles(tree.sysfs, tree.procfs, read_seconds=0.05)
    threads = threading.active_count()
    first, second = files.read([HGX_CARD, HGX_GPU]), files.read([HGX_CARD, HGX_GPU])
    assert first[HGX_CARD] == FactsUnread(
        "cannot read the files of the PCI function: the call to the host did not return within 0.05 s"
    )
    assert second[HGX_CARD] == FactsUnread(
        "an earlier read of the files of the PCI function has not returned"
    )
    assert threading.active_count() == threads + 1
    assert isinstance(first[HGX_GPU], dict)
    assert first[HGX_GPU] == second[HGX_GPU]
    card = describe_device("fabric", HGX_CARD, SysfsPci(tree.sysfs).devices(), second[HGX_CARD])
    assert (card.number, card.iommu_group, card.fabric_metadata) == ("15b3:1021", "304", None)
    assert card.unreadable == "an earlier read of the files of the PCI function has not returned"
    _unblock(state)
    until(lambda: isinstance(files.read([HGX_CARD])[HGX_CARD], dict), "the files are read again")


def test_pci_functions_with_files_that_hang_delay_the_read_of_all_functions_by_a_single_deadline(
    tmp_path: Path,
) -> None:
    tree = bluefield3(tmp_path)
    state = tree.folder("0000:3b:00.0") / "infiniband/mlx5_0/ports/1/state"
    state.unlink()
    os.mkfifo(state)
    functions = [PciAddress(vf) for vf in CARD_VFS]
    begin = monotonic()
    read = HostDeviceFiles(tree.sysfs, tree.procfs, read_seconds=0.3).read(functions)
    assert 0.3 <= monotonic() - begin < 0.3 * len(functions)
    assert {*read.values()} == {
        FactsUnread(
            "cannot read the files of the PCI function: the call to the host did not return within 0.3 s"
        )
    }
    _unblock(state)


def _unblock(pipe: Path) -> None:
    """Let all reads of a named pipe return, and replace it by a file."""
    end = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    pipe.unlink()
    pipe.write_text("1: DOWN\n")
    os.close(end)


def test_pci_functions_of_the_machine_that_runs_the_tests_are_described_without_an_error() -> None:
    machine = Tree(Path("/"))
    found = SysfsPci(machine.sysfs).devices()
    functions = [HostDevice(each.address, "fabric") for each in found]
    facts = described_slot(machine, *functions)
    for each in found:
        device = facts["fabric", each.address]
        assert (device.number, device.kind, device.unreadable) == (each.number, each.kind, None)
        assert evidence(device)[f"{PCI_FOLDER}/{each.address}"] == os.path.realpath(
            f"/sys/bus/pci/devices/{each.address}"
        )


@settings(max_examples=50)
@given(
    st.dictionaries(
        st.sampled_from(
            [
                f"{PCI_FOLDER}/0000:01:00.0{name}"
                for name in (
                    "",
                    "/resource",
                    "/infiniband/a/node_guid",
                    "/infiniband/a/ports/1/rate",
                    "/infiniband/a/ports/1/state",
                    "/infiniband/a/ports/x/state",
                    "/net/b/mtu",
                    "/net/b/speed",
                    "/net/b/address",
                    "/net/b/operstate",
                )
            ]
            + ["/proc/driver/nvidia/gpus/0000:01:00.0/information"]
        ),
        st.text()
        | st.from_regex(
            r"-?\d{1,12} Gb/sec|\d{1,12}: \w{0,99}|Model: .{0,99}|(0x[0-9a-f]{1,20} ?){3}|\d{1,12}"
        ),
    ),
    st.sampled_from(["gpu", "fabric", "card"]),
)
def test_any_text_in_the_sysfs_files_of_a_pci_function_gives_a_valid_description(
    files: dict[str, str], use: Use
) -> None:
    address = PciAddress("0000:01:00.0")
    device = PciDevice(address, 0x15B3, 0x1021, 0x020700)
    found = describe_device(use, address, PciDevices((device,)), files)
    assert FoundDevice.model_validate_json(found.model_dump_json()) == found


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:18:00.0", "0000:15:01.0"),
        ("/sys/devices/pci0000:00/0000:00:02.0", None),
        ("/sys/devices/pci0000:5d/0000:5d:05.5/pci10000:00/10000:00:02.0/10000:01:00.0", "10000:00:02.0"),
        ("/sys/devices/virtual/net/tmfifo_net0", None),
        ("", None),
    ],
)
def test_root_port_of_a_pci_function_is_the_topmost_bridge_of_its_own_domain(
    path: str, expected: str | None
) -> None:
    assert root_port(path) == expected


def test_largest_bar_ignores_rom_regions_of_virtual_functions_and_32_bit_regions() -> None:
    assert largest_bar(gpu_regions(128 * GIB)) == (2, 131072)
    assert largest_bar("0x00000000fb000000 0x00000000fbffffff 0x0000000000040200\n") is None
    assert largest_bar("no region\n") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4: ACTIVE", "active"),
        ("5: ACTIVE_DEFER", "active_defer"),
        ("5: LinkUp", "link_up"),
        ("4: PortConfigurationTraining", "port_configuration_training"),
        ("7: Phy Test", "phy_test"),
        ("unknown", None),
        (None, None),
    ],
)
def test_state_of_an_rdma_port_is_named_in_snake_case(text: str | None, expected: str | None) -> None:
    assert state_word(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("400 Gb/sec (4X NDR)", 400_000), ("2.5 Gb/sec (1X SDR)", 2500), ("", None)]
)
def test_rate_of_an_rdma_port_is_read_in_mbit_per_second(text: str, expected: int | None) -> None:
    assert rate_mbit(text) == expected


def test_uuid_of_a_gpu_that_its_driver_has_not_initialized_is_absent() -> None:
    text = "Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-????????-????-????-????-????????????\n"
    assert nvidia_fields(text) == {"Model": "NVIDIA H200"}
