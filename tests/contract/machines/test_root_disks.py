"""Root disks of virtual machines, on a real and on a simulated host. The disk image halts the processor."""

from dataclasses import replace
from typing import Final

import pytest

from node_agent.aspects.machine_plans import root_disk_name
from node_agent.aspects.machines import Machines
from node_agent.host.guests import GuestDisk, guest_for
from node_agent.host.slices import HostRefused, Slice
from tests.contract.machines.hosts import Alteration, Host
from tests.contract.machines.test_machines import apply, only_domain, remove
from tests.node.guests import FIRST, SECOND, network_on, slice_on
from tests.servers.image_store import root_disk

HALTING: Final = b"\xfa\xf4\xeb\xfd".ljust(510, b"\x00") + b"\x55\xaa" + bytes(2**20)
"""Content of a disk image with a boot sector that disables interrupts and halts the processor."""
DISK: Final = root_disk(HALTING)
MAKING: Final = ["machine.write_seed", "machine.fetch_image", "machine.make_root_disk", "machine.start"]


def with_disk(wanted: Slice) -> Slice:
    return replace(wanted, machine=wanted.machine.model_copy(update={"root_disk": DISK}))


WANTED: Final = with_disk(slice_on(0))
OTHER: Final = with_disk(slice_on(0, SECOND))


@pytest.fixture(autouse=True)
def _image(host: Host) -> None:
    host.add_tap("slice0")
    host.place_image(HALTING)


def test_applied_slice_has_its_root_disk_and_applying_it_again_changes_nothing(
    host: Host, machines: Machines
) -> None:
    assert apply(machines, WANTED) == MAKING
    guest = only_domain(host).guest
    assert guest == guest_for(WANTED)
    assert guest.root_disk == GuestDisk(DISK.digest, DISK.size_gib, "bios")
    assert apply(machines, WANTED) == []


def test_slice_that_is_stopped_and_started_again_keeps_its_root_disk(host: Host, machines: Machines) -> None:
    apply(machines, WANTED)
    before = host.root_disks.found("slice0")
    for step in machines.to_stop(network_on(0)):
        step.run()
    assert apply(machines, WANTED) == ["machine.start"]
    assert host.root_disks.found("slice0") == before


def test_slice_gets_its_root_disk_again_after_a_reboot_that_deleted_its_seed(
    host: Host, machines: Machines
) -> None:
    apply(machines, WANTED)
    host.stop(only_domain(host))
    host.disks.wipe("slice0")
    assert apply(machines, WANTED) == ["machine.write_seed", "machine.start"]


def test_removed_slice_leaves_no_root_disk_and_removing_it_again_changes_nothing(
    host: Host, machines: Machines
) -> None:
    apply(machines, WANTED)
    name = root_disk_name(guest_for(WANTED))
    assert f"root disk file {name}" in machines.remains(network_on(0))
    assert remove(machines) == ["machine.destroy", "machine.wipe_root_disk", "machine.wipe_disks"]
    assert machines.remains(network_on(0)) == ()
    assert remove(machines) == []


def test_root_disk_of_the_previous_tenant_is_deleted_before_the_next_one_gets_a_root_disk(
    host: Host, machines: Machines
) -> None:
    apply(machines, OTHER)
    made = apply(machines, WANTED)
    assert made == [
        "machine.destroy",
        "machine.wipe_disks",
        "machine.write_seed",
        "machine.wipe_root_disk",
        *MAKING[1:],
    ]
    files = host.root_disks.found("slice0")
    assert root_disk_name(guest_for(WANTED)) in files
    assert root_disk_name(guest_for(OTHER)) not in files


def test_guest_without_root_disk_does_not_start_beside_the_root_disk_of_the_previous_tenant(
    host: Host, machines: Machines
) -> None:
    apply(machines, OTHER)
    assert "machine.wipe_root_disk" in apply(machines, slice_on(0))
    assert host.root_disks.found("slice0") == ()


def test_guest_with_another_disk_than_ordered_is_replaced(host: Host, machines: Machines) -> None:
    apply(machines, slice_on(0))
    assert apply(machines, WANTED) == ["machine.destroy", *MAKING[1:]]
    assert only_domain(host).guest == guest_for(WANTED)


def test_guest_with_an_image_that_its_node_cannot_get_is_refused(host: Host, machines: Machines) -> None:
    host.lose_image(DISK)
    with pytest.raises(HostRefused, match=DISK.digest):
        apply(machines, WANTED)
    assert host.hypervisor.domains() == ()
    host.place_image(HALTING)
    assert apply(machines, WANTED) == MAKING[1:]


def test_disk_that_an_operator_attached_beside_the_root_disk_is_a_foreign_setting(
    host: Host, machines: Machines
) -> None:
    apply(machines, WANTED)
    host.alter(only_domain(host), Alteration("disk vdc", "attach-disk {domain} {file} vdc --mode readonly"))
    guest = only_domain(host).guest
    assert guest is not None
    assert guest.strange == ("disk vdc",)
    assert guest.allocation_id == FIRST
