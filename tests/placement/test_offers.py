"""What slots offer, from the PCI functions of recorded hosts, and how this compares with SKUs."""

from pathlib import Path
from typing import Final

import msgspec
import pytest

from control_plane.commands.nodes import slot_device
from control_plane.decisions.placing.suitability import Demand, Mismatch, Suited, compare, suggested
from deploy.embedded.lab_catalogue import SMALL
from events.offers import NOTHING, Locality, Offer, SlotClass, decoded, encoded, offer_of
from events.slots import SlotHardware
from events.values import Fabric, PciAddress, SkuName, SlotIndex
from node_agent.aspects.devices import describe_devices_of
from node_agent.drivers.device_files import HostDeviceFiles
from node_agent.drivers.sysfs import SysfsPci
from node_agent.host.host_resources import HostDevice, Place, Use
from tests.node.hardware_trees import HGX_CARD, HGX_GPU, Tree, ethernet_only, hgx_h200, hgx_h200_roce

NAME: Final = SkuName("h200.one")
H200: Final = msgspec.structs.replace(
    SMALL, gpu_model="NVIDIA H200 SXM 141GB", gpu_count=1, fabric="ib", numa="single"
)
OTHER_GPU: Final = "0000:18:00.0"
HARDWARE: Final = SlotHardware(24, 196608, "slice0")


def offered(tree: Tree, numa_node: int | None, *functions: tuple[Use, str]) -> Offer:
    """Return the offer of a slot with these PCI functions of a recorded host."""
    devices = tuple(HostDevice(PciAddress(address), use) for use, address in functions)
    describe = describe_devices_of(
        {SlotIndex(0): Place(devices=devices)}, HostDeviceFiles(tree.sysfs, tree.procfs)
    )
    found = describe(SysfsPci(tree.sysfs).devices())
    return offer_of([slot_device(each) for each in found.values()], numa_node)


def compared(offer: Offer, *fabrics: Fabric) -> Suited | Mismatch:
    slots = SlotClass((NAME,), HARDWARE.vcpus, HARDWARE.memory_mib, offer)
    return compare(Demand(NAME, H200, fabrics or (H200.fabric,)), slots)


def test_gpu_and_infiniband_card_below_one_root_port_are_offered_as_such(tmp_path: Path) -> None:
    found = offered(hgx_h200(tmp_path), 1, ("gpu", HGX_GPU), ("fabric", HGX_CARD))
    assert found == Offer("NVIDIA H200 SXM 141GB", 1, "ib", False, 1, Locality.ROOT_PORT)
    assert compared(found) == Suited(0, 0, Locality.ROOT_PORT)


def test_slot_with_a_roce_card_does_not_suit_an_infiniband_sku_unless_the_profile_accepts_roce(
    tmp_path: Path,
) -> None:
    found = offered(hgx_h200_roce(tmp_path), 1, ("gpu", HGX_GPU), ("fabric", HGX_CARD))
    assert found.fabric == "roce"
    assert compared(found) == Mismatch.OTHER_FABRIC
    assert compared(found, "ib", "roce") == Suited(1, 0, Locality.ROOT_PORT)
    assert compared(found, "ib", "none") == Suited(1, 1, Locality.ROOT_PORT)


def test_slot_with_a_gpu_on_another_numa_node_does_not_suit_a_sku_that_requires_one(tmp_path: Path) -> None:
    found = offered(hgx_h200(tmp_path), 1, ("gpu", OTHER_GPU), ("fabric", HGX_CARD))
    assert (found.numa_nodes, found.locality) == (2, Locality.HOST)
    assert compared(found) == Mismatch.SEVERAL_NUMA_NODES


def test_network_card_without_an_rdma_device_is_offered_as_ethernet(tmp_path: Path) -> None:
    assert offered(ethernet_only(tmp_path), None, ("fabric", "0000:41:00.0")).fabric == "ethernet"


def test_slot_with_a_pci_function_that_is_missing_on_the_host_offers_no_device(tmp_path: Path) -> None:
    tree = hgx_h200(tmp_path)
    tree.vanish(HGX_GPU)
    assert offered(tree, 0, ("gpu", HGX_GPU)).gpu_count == 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"gpu_model": "NVIDIA H100"}, Mismatch.OTHER_GPU),
        ({"gpu_model": None}, Mismatch.OTHER_GPU),
        ({"gpu_count": 2}, Mismatch.OTHER_GPU),
        ({"fabric": "none"}, Mismatch.OTHER_FABRIC),
        ({"fabric_down": True}, Mismatch.FABRIC_DOWN),
        ({"numa_nodes": None}, Mismatch.SEVERAL_NUMA_NODES),
    ],
)
def test_slot_that_lacks_one_property_that_its_sku_requires_is_not_suitable(
    change: dict[str, object], reason: Mismatch
) -> None:
    suiting = Offer("NVIDIA H200 SXM 141GB", 1, "ib", False, 1, Locality.ROOT_PORT)
    assert isinstance(compared(suiting), Suited)
    assert compared(msgspec.structs.replace(suiting, **change)) == reason


def test_suggested_sku_uses_the_gpus_and_the_fabric_of_the_slot() -> None:
    skus = [
        (SkuName("cpu.large"), msgspec.structs.replace(SMALL, vcpus=24, memory_mib=196608)),
        (SkuName("h200.ib"), H200),
        (SkuName("h200.roce"), msgspec.structs.replace(H200, fabric="roce")),
        (SkuName("h200.plain"), msgspec.structs.replace(H200, fabric="none")),
    ]
    offer = Offer("NVIDIA H200 SXM 141GB", 1, "ib", False, 1, Locality.ROOT_PORT)
    by_fabric = {
        fabric: suggested(HARDWARE, msgspec.structs.replace(offer, fabric=fabric), skus)
        for fabric in ("ib", "roce", "ethernet")
    }
    assert by_fabric == {"ib": "h200.ib", "roce": "h200.roce", "ethernet": "h200.plain"}
    assert suggested(HARDWARE, NOTHING, skus) == "cpu.large"
    assert suggested(SlotHardware(1, 1, "slice0"), offer, skus) is None


@pytest.mark.parametrize(
    "offer", [NOTHING, Offer("NVIDIA H200 SXM 141GB", 8, "roce", True, 2, Locality.NUMA_NODE)]
)
def test_stored_hardware_offer_of_a_slot_is_read_back_unchanged(offer: Offer) -> None:
    assert decoded(encoded(offer)) == offer


def test_slot_row_without_a_stored_offer_is_read_as_a_slot_without_pci_functions() -> None:
    assert decoded(None) == NOTHING
