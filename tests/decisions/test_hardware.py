"""Comparison of the hardware of a slot with the approved hardware: which changes are drift, and when the drift ends."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from control_plane.decisions.fleet import drift
from control_plane.decisions.fleet.hardware import changed, hardware_of
from events.drift import OpenDrift
from events.slots import FabricMetadata, SlotDegraded, SlotDevice, SlotHardware
from events.values import PciAddress, SlotId

THEN, NOW = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC)
SIZE = SlotHardware(8, 65536, "slice0")
PORT = FabricMetadata(link_layer="infiniband", port_state="active", rate_mbit=400_000, mtu=4092)
DEVICE = SlotDevice(
    address=PciAddress("0000:1b:00.0"),
    use="gpu",
    number="10de:2335",
    kind="gpu",
    numa_node=0,
    model="NVIDIA H200",
    memory_mib=143_771,
    uuid="GPU-1",
    iommu_group="59",
    root_port=PciAddress("0000:15:01.0"),
    physical_function=PciAddress("0000:1b:00.1"),
    vf_number=3,
    fabric_metadata=PORT,
)
APPROVED = hardware_of(SIZE, [DEVICE], 0)


def differences(
    device: SlotDevice,
    size: SlotHardware = SIZE,
    numa_node: int | None = 0,
    recorded: tuple[OpenDrift, ...] = (),
) -> tuple[OpenDrift, ...]:
    return changed(APPROVED, hardware_of(size, [device], numa_node), [device], recorded, NOW)


def with_(**facts: Any) -> SlotDevice:
    return msgspec.structs.replace(DEVICE, **facts)


@pytest.mark.parametrize(
    ("facts", "approved", "found"),
    [
        ({"number": "10de:2330"}, "device id 10de:2335", "10de:2330"),
        ({"number": None, "kind": None, "numa_node": None}, "device id 10de:2335", "none"),
        ({"numa_node": 1}, "NUMA node 0", "1"),
        ({"numa_node": None}, "NUMA node 0", "none"),
        ({"iommu_group": "60"}, "IOMMU group 59", "60"),
        ({"iommu_group": None}, "IOMMU group 59", "none"),
        ({"root_port": PciAddress("0000:15:02.0")}, "root port 0000:15:01.0", "0000:15:02.0"),
        (
            {"physical_function": PciAddress("0000:1c:00.1")},
            "physical function 0000:1b:00.1",
            "0000:1c:00.1",
        ),
        ({"vf_number": 4}, "VF number 3", "4"),
        ({"model": "NVIDIA H100"}, "model NVIDIA H200", "NVIDIA H100"),
        ({"memory_mib": 80_000}, "memory in MiB 143771", "80000"),
        ({"uuid": "GPU-2"}, "UUID GPU-1", "GPU-2"),
        ({"fabric_metadata": FabricMetadata(link_layer="ethernet")}, "link layer infiniband", "ethernet"),
    ],
)
def test_changed_property_of_a_device_is_drift_that_blocks_and_names_both_values(
    facts: dict[str, Any], approved: str, found: str
) -> None:
    (only,) = differences(with_(**facts))
    assert only == OpenDrift(
        "slot.changed", f"GPU 0000:1b:00.0: {approved}, as approved", found, NOW, blocks=True
    )


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"fabric_metadata": FabricMetadata("infiniband", "mlx5_7", "down", "polling", 200_000, 1500)},
        {"kind": "other"},
        {"representor": "pf0vf3"},
        {"bar_mib": 1},
        {"uuid": None},
        {"model": None, "memory_mib": None},
        {"fabric_metadata": None},
        {"unreadable": "no answer within 2 s", "number": None, "numa_node": None, "iommu_group": None},
    ],
    ids=lambda facts: ", ".join(facts) or "nothing",
)
def test_port_state_driver_in_use_and_unreadable_properties_of_a_device_are_not_reported_as_a_difference(
    facts: dict[str, Any],
) -> None:
    assert differences(with_(**facts)) == ()


def test_slot_with_another_size_and_another_numa_node_has_one_difference_for_each_property() -> None:
    found = differences(DEVICE, SlotHardware(4, 32768, "slice9"), 1)
    assert [(each.desired, each.observed) for each in found] == [
        ("vCPUs 8, as approved", "4"),
        ("memory in MiB 65536, as approved", "32768"),
        ("NUMA node 0, as approved", "1"),
    ]


def test_device_property_that_was_unknown_at_the_approval_is_not_reported_as_a_difference_later() -> None:
    approved = hardware_of(SIZE, [with_(uuid=None)], 0)
    assert changed(approved, hardware_of(SIZE, [DEVICE], 0), [DEVICE], (), NOW) == ()


def test_slot_without_approved_hardware_has_no_changed_hardware() -> None:
    assert changed(None, APPROVED, [DEVICE], (), NOW) == ()


@pytest.mark.parametrize(
    "facts", [{"uuid": None}, {"unreadable": "no answer"}, {"number": None, "kind": None, "uuid": None}]
)
def test_recorded_difference_stays_while_the_property_cannot_be_read(facts: dict[str, Any]) -> None:
    (recorded,) = differences(with_(uuid="GPU-2"))
    recorded = msgspec.structs.replace(recorded, since=THEN)
    assert recorded in differences(with_(**facts), recorded=(recorded,))
    assert differences(DEVICE, recorded=(recorded,)) == ()


def test_drift_of_a_hardware_property_is_recorded_again_only_if_the_observed_value_changes_again() -> None:
    slot, first, second = (
        SlotId("lab-a/0"),
        differences(with_(uuid="GPU-2")),
        differences(with_(uuid="GPU-3")),
    )
    assert drift.of_slot(slot, first, first) == ()
    assert drift.of_slot(slot, first, second) == (SlotDegraded(slot, second),)
