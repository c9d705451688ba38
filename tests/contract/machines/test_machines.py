"""The agent's management of virtual machines, on a real and on a simulated host."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final
from uuid import uuid4

import pytest

from events.values import AllocationId, ImageName
from node_agent.aspects.machine_plans import FoundDomain
from node_agent.aspects.machines import Machines
from node_agent.host.guests import Guest, guest_for
from node_agent.host.host import Console, ConsoleRefused, ObservedMachine
from node_agent.host.slices import HostRefused, HostUnreadable, Slice, SliceNetwork
from node_agent.host.snapshots import host_snapshot
from tasks.streams import KEPT_LOG_DAYS, MAX_KEPT_LOG, MAX_SERIAL_LOG
from tests.contract.machines.hosts import ALTERATIONS, EXTENSIONS, Host, machines_of
from tests.contract.machines.viewer import Viewer
from tests.lab.awaiting import eventually
from tests.node.guests import SECOND, network_on, slice_on

WANTED = slice_on(0)
OTHER: Final = AllocationId("alc-0000000000000000000000000z")


def apply(machines: Machines, wanted: Slice = WANTED) -> list[str]:
    steps = machines.to_apply(wanted)
    for step in steps:
        step.run()
    return [step.name for step in steps]


def remove(machines: Machines, index: int = 0) -> list[str]:
    steps = machines.to_remove(network_on(index))
    for step in steps:
        step.run()
    return [step.name for step in steps]


def only_domain(host: Host) -> FoundDomain:
    (domain,) = host.hypervisor.domains()
    return domain


def test_applied_slice_has_its_virtual_machine_and_applying_it_again_changes_nothing(
    host: Host, machines: Machines
) -> None:
    host.add_tap("slice0")
    assert apply(machines) == ["machine.write_seed", "machine.start"]
    assert only_domain(host).guest == guest_for(WANTED)
    assert apply(machines) == []


def test_removed_slice_leaves_no_machine_or_disk_and_removing_it_again_changes_nothing(
    host: Host, machines: Machines
) -> None:
    host.add_tap("slice0")
    apply(machines)
    assert machines.remains(network_on(0)) != ()
    assert remove(machines) == ["machine.destroy", "machine.wipe_disks"]
    assert machines.remains(network_on(0)) == ()
    assert remove(machines) == []


def test_serial_log_of_a_slot_is_readable_only_for_its_allocation_also_after_its_removal_and_an_agent_restart(
    host: Host, machines: Machines
) -> None:
    network = network_on(0)
    assert machines.serial_log(network, WANTED.allocation_id, 1000) is None
    host.add_tap("slice0")
    apply(machines)
    host.log_output("slice0", "no init found")
    assert machines.serial_log(network, OTHER, 1000) is None
    remove(machines)
    assert machines.remains(network) == ()
    for restarted in (machines, machines_of(host)):
        content, size = restarted.serial_log(network, WANTED.allocation_id, 1000) or (b"", 0)
        assert content.endswith(b"no init found")
        assert size >= len(content)
        assert restarted.serial_log(network, OTHER, 1000) is None
        assert restarted.serial_log(network_on(1), WANTED.allocation_id, 1000) is None


def test_kept_log_of_a_removed_slice_is_not_that_of_the_slots_next_tenant_and_is_replaced_at_the_end_of_it(
    host: Host, machines: Machines
) -> None:
    network, following = network_on(0), replace(WANTED, allocation_id=OTHER)
    host.add_tap("slice0")
    apply(machines)
    host.log_output("slice0", "output of the first tenant")
    # The folder of the first tenant is wiped by the order for the second one.
    apply(machines, following)
    host.log_output("slice0", "output of the second tenant")
    first, _ = machines.serial_log(network, WANTED.allocation_id, 10_000) or (b"", 0)
    second, _ = machines.serial_log(network, OTHER, 10_000) or (b"", 0)
    assert (b"of the first" in first, b"of the second" in first) == (True, False)
    assert (b"of the first" in second, b"of the second" in second) == (False, True)
    remove(machines)
    assert machines.serial_log(network, WANTED.allocation_id, 10_000) is None
    kept, _ = machines.serial_log(network, OTHER, 10_000) or (b"", 0)
    assert (b"of the first" in kept, b"of the second" in kept) == (False, True)


def test_kept_log_has_the_newest_256_kib_of_the_log_and_the_size_of_the_complete_log(
    host: Host, machines: Machines
) -> None:
    host.add_tap("slice0")
    apply(machines)
    host.log_output("slice0", "oldest" + "x" * MAX_KEPT_LOG + "newest")
    remove(machines)
    content, size = machines.serial_log(network_on(0), WANTED.allocation_id, MAX_SERIAL_LOG) or (b"", 0)
    assert (len(content), content.endswith(b"newest")) == (MAX_KEPT_LOG, True)
    assert size >= MAX_KEPT_LOG + 12
    assert machines.serial_log(network_on(0), WANTED.allocation_id, 6) == (b"newest", size)


def test_kept_log_is_readable_for_seven_days_and_then_deleted(host: Host, machines: Machines) -> None:
    network, allocation = network_on(0), WANTED.allocation_id
    host.add_tap("slice0")
    apply(machines)
    host.log_output("slice0", "no init found")
    remove(machines)
    late = machines_of(host, days_later=KEPT_LOG_DAYS)
    machines.delete_expired_logs()
    assert late.serial_log(network, allocation, 1000) is None
    assert machines.serial_log(network, allocation, 1000) is not None
    late.delete_expired_logs()
    assert machines.serial_log(network, allocation, 1000) is None


def test_console_is_opened_once_for_the_running_machine_of_an_allocation_and_ends_with_the_machine(
    host: Host, machines: Machines
) -> None:
    network, allocation = network_on(0), WANTED.allocation_id
    assert refusal_of_console(machines, network, allocation) == "machine_not_running"
    host.add_tap("slice0")
    apply(machines)
    other = AllocationId("alc-0000000000000000000000000z")
    assert refusal_of_console(machines, network, other) == "machine_not_running"
    console = machines.open_console(network, allocation)
    assert refusal_of_console(machines, network, allocation) == "console_in_use"
    console.close()
    console.close()
    again = eventually(lambda: opened_console(machines, network, allocation))
    again.write(b"x")
    reader = ThreadPoolExecutor(1)
    ended = reader.submit(lambda: list(iter(again.read, b"")))
    remove(machines)
    ended.result(10)
    again.close()


def test_display_of_a_machine_uses_rfb_can_be_open_twice_and_ends_with_the_machine(
    host: Host, machines: Machines
) -> None:
    network, allocation = network_on(0), WANTED.allocation_id
    host.add_tap("slice0")
    with pytest.raises(ConsoleRefused) as refused:
        machines.open_display(network, allocation)
    assert refused.value.code == "machine_not_running"
    apply(machines)
    first, second = (Viewer(machines.open_display(network, allocation)) for _ in range(2))
    for viewer in (first, second):
        width, height = viewer.begin()
        pixels = viewer.pixels(width, height)
        assert len(set(pixels)) < width * height
        assert (width, height) >= (160, 100)
    first.close()
    second.press("a")
    width, height = second.begun
    assert second.pixels(width, height)
    remove(machines)
    assert second.is_at_its_end()


def test_ssh_connection_is_refused_without_a_machine_of_the_allocation_or_if_its_port_does_not_answer(
    host: Host, machines: Machines
) -> None:
    network, allocation = network_on(0), WANTED.allocation_id
    assert refusal_of_ssh(machines, network, allocation) == "machine_not_running"
    host.add_tap("slice0")
    apply(machines)
    other = AllocationId("alc-0000000000000000000000000z")
    assert refusal_of_ssh(machines, network, other) == "machine_not_running"
    # Neither host has a bridge or a DHCP server here, so the machine has no address yet.
    assert refusal_of_ssh(machines, network, allocation) == "ssh_not_reachable"


def opened_console(machines: Machines, network: SliceNetwork, allocation: AllocationId) -> Console | None:
    """Open the console; None while the hypervisor has not yet closed the previous one."""
    try:
        return machines.open_console(network, allocation)
    except ConsoleRefused:
        return None


def refusal_of_ssh(machines: Machines, network: SliceNetwork, allocation: AllocationId) -> str:
    with pytest.raises(ConsoleRefused) as refused:
        machines.open_ssh(network, allocation)
    return refused.value.code


def refusal_of_console(machines: Machines, network: SliceNetwork, allocation: AllocationId) -> str:
    with pytest.raises(ConsoleRefused) as refused:
        machines.open_console(network, allocation)
    return refused.value.code


def test_file_in_place_of_a_slots_disk_folder_is_a_leftover_and_is_removed(
    host: Host, machines: Machines
) -> None:
    host.block("slice0")
    assert machines.remains(network_on(0)) == ("file slice0",)
    assert remove(machines) == ["machine.wipe_disks"]
    assert machines.remains(network_on(0)) == ()


def test_file_in_place_of_a_slots_disk_folder_is_replaced_before_the_guest_starts_and_while_it_runs(
    host: Host, machines: Machines
) -> None:
    host.add_tap("slice0")
    host.block("slice0")
    assert apply(machines) == ["machine.wipe_disks", "machine.write_seed", "machine.start"]
    host.block("slice0")
    assert apply(machines) == ["machine.wipe_disks", "machine.write_seed"]
    assert apply(machines) == []


def test_virtual_machine_is_observed_as_running_paused_or_absent(host: Host, machines: Machines) -> None:
    assert machines.inspect(network_on(0)) is None
    host.add_tap("slice0")
    apply(machines)
    running = machines.inspect(network_on(0))
    assert running == ObservedMachine("running", WANTED.machine.vcpus, WANTED.machine.memory_mib)
    host.pause(only_domain(host))
    assert machines.inspect(network_on(0)) == replace(running, state="paused")
    remove(machines)
    assert machines.inspect(network_on(0)) is None


def test_guest_without_its_tap_is_refused_and_starts_once_the_tap_exists(
    host: Host, machines: Machines
) -> None:
    with pytest.raises(HostRefused, match="slice0"):
        apply(machines)
    host.add_tap("slice0")
    assert apply(machines) == ["machine.start"]


def test_guest_with_an_image_that_its_node_does_not_have_is_refused_with_the_images_name(
    host: Host, machines: Machines
) -> None:
    host.add_tap("slice0")
    with pytest.raises(HostRefused, match="image windows"):
        apply(machines, slice_on(0, image=ImageName("windows")))
    assert host.hypervisor.domains() == ()


def test_guest_that_an_operator_ended_is_reported_as_a_change_of_the_host_and_started_again(
    host: Host, machines: Machines
) -> None:
    host.add_tap("slice0")
    apply(machines)
    # A watch that has just connected counts as an event, so its first call does not report a change of this guest.
    host.changed.wait(0.5)
    host.changed.clear()
    host.stop(only_domain(host))
    assert host.changed.wait(5)
    assert apply(machines) == ["machine.start"]


CHANGES: Final[dict[str, Callable[[Host, FoundDomain], None]]] = {
    "a device": lambda host, domain: host.alter(domain, ALTERATIONS["a disk is attached"]),
    "a pin": lambda host, domain: host.repin(domain, 0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_change_of_a_running_virtual_machine_by_an_operator_is_reported_immediately(
    change: str, host: Host, machines: Machines
) -> None:
    host.add_tap("slice0")
    apply(machines)
    # A watch that has just connected counts as an event, and so does a machine that starts.
    while host.changed.wait(0.5):
        host.changed.clear()
    CHANGES[change](host, only_domain(host))
    assert host.changed.wait(5)


def test_paused_guest_is_resumed_and_not_replaced(host: Host, machines: Machines) -> None:
    host.add_tap("slice0")
    apply(machines)
    host.pause(only_domain(host))
    eventually(lambda: only_domain(host).state == "paused")
    assert apply(machines) == ["machine.resume"]
    assert only_domain(host).state == "running"


def test_resume_of_a_running_or_absent_guest_raises_host_unreadable(host: Host, machines: Machines) -> None:
    host.add_tap("slice0")
    apply(machines)
    domain = only_domain(host)
    with pytest.raises(HostUnreadable, match="resume"):
        host.hypervisor.resume(domain.uuid)
    host.hypervisor.destroy(domain.uuid)
    with pytest.raises(HostUnreadable, match="resume"):
        host.hypervisor.resume(domain.uuid)


def test_next_tenant_of_a_slot_finds_no_data_of_the_previous_one(host: Host, machines: Machines) -> None:
    host.add_tap("slice0")
    apply(machines)
    left = host.disks.found("slice0")
    steps = apply(machines, slice_on(0, SECOND))
    assert steps == ["machine.destroy", "machine.wipe_disks", "machine.write_seed", "machine.start"]
    assert only_domain(host).guest == guest_for(slice_on(0, SECOND))
    assert [name for name in left if "seed" in name and name in host.disks.found("slice0")] == []


def test_guest_with_another_memory_size_than_ordered_is_replaced(host: Host, machines: Machines) -> None:
    host.add_tap("slice0")
    apply(machines)
    assert apply(machines, slice_on(0, memory_mib=112)) == ["machine.destroy", "machine.start"]
    assert only_domain(host).guest == guest_for(slice_on(0, memory_mib=112))


def test_virtual_machine_altered_by_an_operator_is_reported_and_replaced(
    host: Host, machines: Machines
) -> None:
    host.add_tap("slice0")
    apply(machines)
    for name, alteration in ALTERATIONS.items():
        host.alter(only_domain(host), alteration)
        strange = eventually(lambda: guest_of(only_domain(host)).strange)
        assert len(strange) == 1, name
        assert strange[0].startswith(alteration.strange)
        repairs = {step.repairs for step in machines.to_apply(WANTED)}
        found = [(each.kind, strange[0] in each.observed) for each in repairs if each]
        assert (name, found) == (name, [("machine.changed", True)])
        assert (name, apply(machines)) == (name, ["machine.destroy", "machine.start"])
        assert guest_of(only_domain(host)) == guest_for(WANTED), name
        assert (name, apply(machines)) == (name, [])


def test_virtual_machine_extended_through_the_qemu_monitor_is_reported_and_replaced(
    host: Host, machines: Machines
) -> None:
    host.add_tap("slice0")
    apply(machines)
    assert apply(machines) == []
    for name, extension in EXTENSIONS.items():
        host.extend(only_domain(host), extension)
        repairs = {step.repairs for step in machines.to_apply(WANTED)}
        found = [(each.kind, extension.foreign in each.observed) for each in repairs if each]
        assert (name, found) == (name, [("machine.changed", True)])
        assert (name, apply(machines)) == (name, ["machine.destroy", "machine.start"])
        assert (name, apply(machines)) == (name, [])


def test_virtual_machine_with_a_stopped_qemu_process_is_reported_and_continued(
    host: Host, machines: Machines
) -> None:
    host.add_tap("slice0")
    apply(machines)
    host.freeze(only_domain(host))
    eventually(lambda: [step.name for step in machines.to_apply(WANTED)] == ["machine.resume"])
    assert [step.repairs.kind for step in machines.to_apply(WANTED) if step.repairs] == ["machine.frozen"]
    process = host.hypervisor.process(only_domain(host))
    assert apply(machines) == ["machine.resume"]
    assert apply(machines) == []
    continued = host.hypervisor.process(only_domain(host))
    assert process is not None
    assert continued == replace(process, frozen=False)


def guest_of(domain: FoundDomain) -> Guest:
    assert domain.guest is not None
    return domain.guest


def test_two_slots_of_one_allocation_have_separate_machines(host: Host, machines: Machines) -> None:
    for index in (0, 1):
        host.add_tap(f"slice{index}")
        apply(machines, slice_on(index))
    remove(machines, 0)
    assert only_domain(host).guest == guest_for(slice_on(1))
    assert apply(machines, slice_on(1)) == []


def test_second_guest_with_the_same_name_is_refused(host: Host, machines: Machines) -> None:
    host.add_tap("slice0")
    apply(machines)
    duplicate = replace(guest_for(WANTED), uuid=uuid4())
    with pytest.raises(HostRefused, match="slice0"):
        host.hypervisor.start(duplicate, machines.hosting(duplicate))
    assert only_domain(host).guest == guest_for(WANTED)


def test_second_guest_on_the_same_tap_is_refused(host: Host, machines: Machines) -> None:
    host.add_tap("slice0")
    apply(machines)
    squatter = replace(guest_for(WANTED), name="squatter", uuid=uuid4())
    host.disks.write("squatter/seed.iso", b"seed")
    with pytest.raises(HostRefused, match="squatter"):
        host.hypervisor.start(
            squatter, replace(machines.hosting(squatter), seed=host.disks.path("squatter/seed.iso"))
        )
    host.disks.wipe("squatter")


def test_guest_without_its_seed_image_is_refused(host: Host, machines: Machines) -> None:
    host.add_tap("slice0")
    guest = guest_for(WANTED)
    with pytest.raises(HostRefused, match="slice0"):
        host.hypervisor.start(guest, machines.hosting(guest))


def test_destroying_an_absent_libvirt_domain_raises_no_error(host: Host) -> None:
    host.hypervisor.destroy(uuid4())


def stop(machines: Machines, index: int = 0) -> list[str]:
    steps = machines.to_stop(network_on(index))
    for step in steps:
        step.run()
    return [step.name for step in steps]


def ask_to_shut_down(machines: Machines, index: int = 0) -> list[str]:
    steps = machines.to_shut_down(network_on(index))
    for step in steps:
        step.run()
    return [step.name for step in steps]


def test_stopped_virtual_machine_keeps_its_disk_folder_and_is_started_from_it_again(
    host: Host, machines: Machines
) -> None:
    host.add_tap("slice0")
    apply(machines)
    kept = host.disks.found("slice0")
    assert machines.still_on(network_on(0)) != ()
    assert stop(machines) == ["machine.destroy"]
    assert machines.still_on(network_on(0)) == ()
    assert {*host.disks.found("slice0")} >= {name for name in kept if "seed" in name}
    assert stop(machines) == []
    assert apply(machines) == ["machine.start"]


def test_virtual_machine_is_restarted_after_its_tap_was_deleted_and_added_again(
    host: Host, machines: Machines
) -> None:
    host.add_tap("slice0")
    apply(machines)
    host.delete_tap("slice0")
    host.add_tap("slice0")
    assert apply(machines) == ["machine.destroy", "machine.start"]
    assert apply(machines) == []


def test_shutdown_of_an_absent_virtual_machine_sends_no_request(host: Host, machines: Machines) -> None:
    assert ask_to_shut_down(machines) == []
    host.add_tap("slice0")
    apply(machines)
    steps = machines.to_shut_down(network_on(0))
    host.stop(only_domain(host))
    for step in steps:
        step.run()
    assert ask_to_shut_down(machines) == []


def test_paused_virtual_machine_gets_no_shutdown_request_and_can_be_stopped(
    host: Host, machines: Machines
) -> None:
    host.add_tap("slice0")
    apply(machines)
    host.pause(only_domain(host))
    assert ask_to_shut_down(machines) == []
    assert stop(machines) == ["machine.destroy"]


def test_machine_inspections_within_one_snapshot_of_the_host_list_the_libvirt_domains_once(
    host: Host, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    listings, domains = list[str](), host.hypervisor.domains

    def listed() -> tuple[FoundDomain, ...]:
        listings.append("once")
        return domains()

    monkeypatch.setattr(host.hypervisor, "domains", listed)
    with host_snapshot():
        for index in (0, 1):
            machines.inspect(network_on(index))
            machines.still_on(network_on(index))
    assert listings == ["once"]
