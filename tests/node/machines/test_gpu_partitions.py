"""Tests of machines with GPUs of a board with NVSwitches: the fabric partition with exactly the GPUs of a machine is
activated before the machine boots, and is active only while the machine exists.
"""

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.values import PciAddress, SlotIndex, pci_address
from node_agent.aspects.links import Tap
from node_agent.aspects.machines import Machines
from node_agent.host.host_resources import HostDevice, Place
from node_agent.host.slices import HostRefused
from node_agent.lab.simulated.gpu_partitions import SimulatedFabricManager, add_partitions
from node_agent.lab.simulated.host import SimulatedHost
from node_agent.lab.simulated.pci import add_pci_devices
from node_agent.settings import SimulatedPartition
from tests.node.guests import IMAGE, network_on, slice_on
from tests.node.machines.test_machine_plan import machines_on

BOARD: Final = tuple(pci_address(f"0000:{bus:02x}:00.0") for bus in range(0x40, 0x48))
OTHER_GPU: Final = pci_address("0000:90:00.0")
SIZES: Final = (8, 4, 2, 1)
PARTITIONS: Final = tuple(
    SimulatedPartition(number=number, gpus=gpus)
    for number, gpus in enumerate(
        BOARD[first : first + size] for size in SIZES for first in range(0, len(BOARD), size)
    )
)
"""Partitions of an HGX board with eight GPUs: one of all, two of four, four of two and eight of one."""


def host_with(*gpus: PciAddress) -> tuple[SimulatedHost, Machines]:
    """Return a simulated host with the board of `PARTITIONS`, and its machines. The GPUs `gpus` belong to slot 0."""
    host, place = SimulatedHost(), Place(tuple(HostDevice(each, "gpu") for each in gpus))
    add_pci_devices(host, [place])
    add_partitions(host, PARTITIONS)
    with host.change() as state:
        state.taps = [Tap("slice0")]
    return host, machines_on(host, {SlotIndex(0): place})


def apply(machines: Machines) -> list[str]:
    """Start the machine of slot 0 and return the names of the steps."""
    steps = machines.to_apply(slice_on(0, image=IMAGE))
    for step in steps:
        step.run()
    return [step.name for step in steps]


def remove(machines: Machines) -> list[str]:
    steps = machines.to_remove(network_on(0))
    for step in steps:
        step.run()
    return [step.name for step in steps]


def active(host: SimulatedHost) -> list[frozenset[PciAddress]]:
    return [each.gpus for each in SimulatedFabricManager(host).partitions() if each.active]


@pytest.mark.parametrize("count", SIZES)
def test_gpu_partition_is_activated_before_its_machine_starts_and_deactivated_after_the_machine_is_removed(
    count: int,
) -> None:
    host, machines = host_with(*BOARD[:count])
    assert apply(machines)[-2:] == ["machine.activate_partition", "machine.start"]
    assert active(host) == [frozenset(BOARD[:count])]
    assert apply(machines) == []
    assert [each for each in machines.remains(network_on(0)) if "partition" in each] == [
        f"partition {number_of(BOARD[:count])} of the fabric manager"
    ]
    removed = remove(machines)
    assert removed[:2] == ["machine.destroy", "machine.deactivate_partition"]
    assert removed.index("machine.deactivate_partition") < removed.index("machine.reset_device")
    assert (active(host), machines.remains(network_on(0))) == ([], ())


def number_of(gpus: tuple[PciAddress, ...]) -> int:
    [number] = [each.number for each in PARTITIONS if each.gpus == gpus]
    return number


def test_gpu_partition_of_a_stopped_machine_is_inactive_until_the_next_start_of_the_machine() -> None:
    host, machines = host_with(*BOARD[:2])
    apply(machines)
    for step in machines.to_stop(network_on(0)):
        step.run()
    assert (active(host), machines.still_on(network_on(0))) == ([], ())
    assert "machine.activate_partition" in apply(machines)
    assert active(host) == [frozenset(BOARD[:2])]


def test_machine_with_gpus_that_form_no_gpu_partition_is_refused_and_the_partitions_of_its_gpus_are_named() -> (
    None
):
    host, machines = host_with(*BOARD[1:3])
    with pytest.raises(
        HostRefused, match=r"exactly the GPUs 0000:41:00\.0, 0000:42:00\.0; .*: 0 \(0000:40.*; 1 \("
    ):
        apply(machines)
    assert active(host) == []
    with host.look() as state:
        assert state.domains == []


def test_machine_with_a_gpu_outside_of_the_nvswitch_board_activates_no_gpu_partition() -> None:
    host, machines = host_with(OTHER_GPU)
    assert "machine.activate_partition" not in apply(machines)
    assert active(host) == []


def test_gpu_partition_of_another_machine_stays_active_when_a_machine_starts_and_is_removed() -> None:
    host, machines = host_with(*BOARD[:4])
    other = number_of(BOARD[4:6])
    SimulatedFabricManager(host).activate(other)
    apply(machines)
    assert {*active(host)} == {frozenset(BOARD[:4]), frozenset(BOARD[4:6])}
    remove(machines)
    assert active(host) == [frozenset(BOARD[4:6])]


@given(st.sampled_from(PARTITIONS), st.lists(st.sampled_from(PARTITIONS), max_size=4))
def test_active_gpu_partitions_that_overlap_a_slot_are_replaced_by_the_partition_of_its_gpus(
    own: SimulatedPartition, left: list[SimulatedPartition]
) -> None:
    host, machines = host_with(*own.gpus)
    manager = SimulatedFabricManager(host)
    for each in left:
        if not any({*gpus} & {*each.gpus} for gpus in active(host)):
            manager.activate(each.number)
    others = [gpus for gpus in active(host) if not gpus & {*own.gpus}]
    apply(machines)
    assert sorted(active(host), key=sorted) == sorted([*others, frozenset(own.gpus)], key=sorted)
    remove(machines)
    assert active(host) == others
