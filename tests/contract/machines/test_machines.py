"""What the machine aspect promises on any host, real or simulated."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final
from uuid import uuid4

import pytest

from events.values import ImageName
from node_agent.guests import Guest, guest_for
from node_agent.host import MachineSeen
from node_agent.looks import one_look
from node_agent.machine_plans import FoundDomain
from node_agent.machines import Machines
from node_agent.slices import HostRefused, HostUnreadable, Slice
from tests.contract.machines.hosts import ALTERATIONS, EXTENSIONS, Host
from tests.lab.awaiting import eventually
from tests.node.guests import SECOND, network_on, slice_on

WANTED = slice_on(0)


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


def test_a_slot_gets_its_guest_as_wanted_and_applying_again_changes_nothing(
    host: Host, machines: Machines
) -> None:
    host.add_tap("slice0")
    assert apply(machines) == ["machine.write_seed", "machine.start"]
    assert only_domain(host).guest == guest_for(WANTED)
    assert apply(machines) == []


def test_a_removed_slice_leaves_nothing_and_removing_again_changes_nothing(
    host: Host, machines: Machines
) -> None:
    host.add_tap("slice0")
    apply(machines)
    assert machines.remains(network_on(0)) != ()
    assert remove(machines) == ["machine.destroy", "machine.wipe_disks"]
    assert machines.remains(network_on(0)) == ()
    assert remove(machines) == []


def test_a_file_in_the_place_of_the_slots_folder_is_told_and_taken_away(
    host: Host, machines: Machines
) -> None:
    host.block("slice0")
    assert machines.remains(network_on(0)) == ("file slice0",)
    assert remove(machines) == ["machine.wipe_disks"]
    assert machines.remains(network_on(0)) == ()


def test_a_file_in_the_place_of_the_slots_folder_makes_way_for_a_guest_and_under_one(
    host: Host, machines: Machines
) -> None:
    host.add_tap("slice0")
    host.block("slice0")
    assert apply(machines) == ["machine.wipe_disks", "machine.write_seed", "machine.start"]
    host.block("slice0")
    assert apply(machines) == ["machine.wipe_disks", "machine.write_seed"]
    assert apply(machines) == []


def test_a_machine_is_seen_running_paused_and_gone(host: Host, machines: Machines) -> None:
    assert machines.inspect(network_on(0)) is None
    host.add_tap("slice0")
    apply(machines)
    running = machines.inspect(network_on(0))
    assert running == MachineSeen("running", WANTED.machine.vcpus, WANTED.machine.memory_mib)
    host.pause(only_domain(host))
    assert machines.inspect(network_on(0)) == replace(running, state="paused")
    remove(machines)
    assert machines.inspect(network_on(0)) is None


def test_a_guest_without_its_tap_is_refused_and_starts_once_the_tap_is_there(
    host: Host, machines: Machines
) -> None:
    with pytest.raises(HostRefused, match="slice0"):
        apply(machines)
    host.add_tap("slice0")
    assert apply(machines) == ["machine.start"]


def test_an_image_that_the_node_has_not_is_refused_by_name(host: Host, machines: Machines) -> None:
    host.add_tap("slice0")
    with pytest.raises(HostRefused, match="image windows"):
        apply(machines, slice_on(0, image=ImageName("windows")))
    assert host.hypervisor.domains() == ()


def test_a_guest_that_was_ended_from_outside_is_told_and_started_again(
    host: Host, machines: Machines
) -> None:
    host.add_tap("slice0")
    apply(machines)
    # A watch that has just connected counts as an event, so its first call says nothing about this guest.
    host.changed.wait(0.5)
    host.changed.clear()
    host.stop(only_domain(host))
    assert host.changed.wait(5)
    assert apply(machines) == ["machine.start"]


CHANGES: Final[dict[str, Callable[[Host, FoundDomain], None]]] = {
    "a device": lambda host, domain: host.alter(domain, ALTERATIONS["a disk is attached"]),
    "a pin": lambda host, domain: host.repin(domain, 0),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_of_a_machine_that_runs_is_told_at_once(what: str, host: Host, machines: Machines) -> None:
    host.add_tap("slice0")
    apply(machines)
    # As above; and a machine that comes up is told of, too.
    while host.changed.wait(0.5):
        host.changed.clear()
    CHANGES[what](host, only_domain(host))
    assert host.changed.wait(5)


def test_a_paused_guest_is_resumed_and_not_replaced(host: Host, machines: Machines) -> None:
    host.add_tap("slice0")
    apply(machines)
    host.pause(only_domain(host))
    eventually(lambda: only_domain(host).state == "paused")
    assert apply(machines) == ["machine.resume"]
    assert only_domain(host).state == "running"


def test_resuming_what_is_not_paused_any_more_asks_for_another_look(host: Host, machines: Machines) -> None:
    host.add_tap("slice0")
    apply(machines)
    domain = only_domain(host)
    with pytest.raises(HostUnreadable, match="resume"):
        host.hypervisor.resume(domain.uuid)
    host.hypervisor.destroy(domain.uuid)
    with pytest.raises(HostUnreadable, match="resume"):
        host.hypervisor.resume(domain.uuid)


def test_the_next_tenant_finds_nothing_of_the_last(host: Host, machines: Machines) -> None:
    host.add_tap("slice0")
    apply(machines)
    left = host.disks.found("slice0")
    steps = apply(machines, slice_on(0, SECOND))
    assert steps == ["machine.destroy", "machine.wipe_disks", "machine.write_seed", "machine.start"]
    assert only_domain(host).guest == guest_for(slice_on(0, SECOND))
    assert [name for name in left if "seed" in name and name in host.disks.found("slice0")] == []


def test_a_guest_of_another_size_is_replaced(host: Host, machines: Machines) -> None:
    host.add_tap("slice0")
    apply(machines)
    assert apply(machines, slice_on(0, memory_mib=112)) == ["machine.destroy", "machine.start"]
    assert only_domain(host).guest == guest_for(slice_on(0, memory_mib=112))


@pytest.mark.parametrize("altered", ALTERATIONS)
def test_a_machine_that_was_altered_is_told_and_made_anew(
    altered: str, host: Host, machines: Machines
) -> None:
    host.add_tap("slice0")
    apply(machines)
    host.alter(only_domain(host), ALTERATIONS[altered])
    strange = eventually(lambda: guest_of(only_domain(host)).strange)
    assert len(strange) == 1
    assert strange[0].startswith(ALTERATIONS[altered].strange)
    mends = {step.mends for step in machines.to_apply(WANTED)}
    assert [(each.kind, strange[0] in each.found) for each in mends if each] == [("machine.changed", True)]
    assert apply(machines) == ["machine.destroy", "machine.start"]
    assert guest_of(only_domain(host)) == guest_for(WANTED)
    assert apply(machines) == []


@pytest.mark.parametrize("name", EXTENSIONS)
def test_machine_extended_through_its_monitor_is_reported_and_replaced(
    name: str, host: Host, machines: Machines
) -> None:
    host.add_tap("slice0")
    apply(machines)
    assert apply(machines) == []
    host.extend(only_domain(host), EXTENSIONS[name])
    mends = {step.mends for step in machines.to_apply(WANTED)}
    found = [(each.kind, EXTENSIONS[name].foreign in each.found) for each in mends if each]
    assert found == [("machine.changed", True)]
    assert apply(machines) == ["machine.destroy", "machine.start"]
    assert apply(machines) == []


def test_machine_whose_process_is_stopped_by_signal_is_reported_and_continues(
    host: Host, machines: Machines
) -> None:
    host.add_tap("slice0")
    apply(machines)
    host.freeze(only_domain(host))
    eventually(lambda: [step.name for step in machines.to_apply(WANTED)] == ["machine.resume"])
    assert [step.mends.kind for step in machines.to_apply(WANTED) if step.mends] == ["machine.frozen"]
    process = host.hypervisor.process(only_domain(host))
    assert apply(machines) == ["machine.resume"]
    assert apply(machines) == []
    continued = host.hypervisor.process(only_domain(host))
    assert process is not None
    assert continued == replace(process, frozen=False)


def guest_of(domain: FoundDomain) -> Guest:
    assert domain.guest is not None
    return domain.guest


def test_two_slots_of_one_allocation_stand_side_by_side(host: Host, machines: Machines) -> None:
    for index in (0, 1):
        host.add_tap(f"slice{index}")
        apply(machines, slice_on(index))
    remove(machines, 0)
    assert only_domain(host).guest == guest_for(slice_on(1))
    assert apply(machines, slice_on(1)) == []


def test_a_second_guest_of_the_same_name_is_refused(host: Host, machines: Machines) -> None:
    host.add_tap("slice0")
    apply(machines)
    twin = replace(guest_for(WANTED), uuid=uuid4())
    with pytest.raises(HostRefused, match="slice0"):
        host.hypervisor.start(twin, machines.hosting(twin))
    assert only_domain(host).guest == guest_for(WANTED)


def test_a_second_guest_on_the_same_tap_is_refused(host: Host, machines: Machines) -> None:
    host.add_tap("slice0")
    apply(machines)
    squatter = replace(guest_for(WANTED), name="squatter", uuid=uuid4())
    host.disks.write("squatter/seed.iso", b"seed")
    with pytest.raises(HostRefused, match="squatter"):
        host.hypervisor.start(
            squatter, replace(machines.hosting(squatter), seed=host.disks.path("squatter/seed.iso"))
        )
    host.disks.wipe("squatter")


def test_a_guest_without_its_seed_is_refused(host: Host, machines: Machines) -> None:
    host.add_tap("slice0")
    guest = guest_for(WANTED)
    with pytest.raises(HostRefused, match="slice0"):
        host.hypervisor.start(guest, machines.hosting(guest))


def test_destroying_what_is_gone_is_no_error(host: Host) -> None:
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


def test_a_stopped_machine_keeps_its_folder_and_starts_from_it_again(host: Host, machines: Machines) -> None:
    host.add_tap("slice0")
    apply(machines)
    kept = host.disks.found("slice0")
    assert machines.still_on(network_on(0)) != ()
    assert stop(machines) == ["machine.destroy"]
    assert machines.still_on(network_on(0)) == ()
    assert {*host.disks.found("slice0")} >= {name for name in kept if "seed" in name}
    assert stop(machines) == []
    assert apply(machines) == ["machine.start"]


def test_a_machine_whose_tap_was_deleted_under_it_is_started_anew(host: Host, machines: Machines) -> None:
    host.add_tap("slice0")
    apply(machines)
    host.delete_tap("slice0")
    host.add_tap("slice0")
    assert apply(machines) == ["machine.destroy", "machine.start"]
    assert apply(machines) == []


def test_a_machine_that_is_gone_is_not_asked_to_shut_down(host: Host, machines: Machines) -> None:
    assert ask_to_shut_down(machines) == []
    host.add_tap("slice0")
    apply(machines)
    steps = machines.to_shut_down(network_on(0))
    host.stop(only_domain(host))
    for step in steps:
        step.run()
    assert ask_to_shut_down(machines) == []


def test_a_paused_machine_cannot_shut_down_and_is_not_asked_to(host: Host, machines: Machines) -> None:
    host.add_tap("slice0")
    apply(machines)
    host.pause(only_domain(host))
    assert ask_to_shut_down(machines) == []
    assert stop(machines) == ["machine.destroy"]


def test_all_that_is_asked_of_machines_within_a_look_is_one_listing(
    host: Host, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    listings, domains = list[str](), host.hypervisor.domains

    def listed() -> tuple[FoundDomain, ...]:
        listings.append("once")
        return domains()

    monkeypatch.setattr(host.hypervisor, "domains", listed)
    with one_look():
        for index in (0, 1):
            machines.inspect(network_on(index))
            machines.still_on(network_on(index))
    assert listings == ["once"]
