"""Tests of the agent's plans for virtual machines: from any observed state of a slot to the desired state, and to an
empty slot.
"""

from dataclasses import replace
from typing import Final
from uuid import uuid4

from hypothesis import given
from hypothesis import strategies as st

from events.values import PciAddress, SlotIndex
from node_agent.aspects.links import Tap
from node_agent.aspects.machine_drift import difference
from node_agent.aspects.machine_plans import (
    CheckDevices,
    Destroy,
    DomainState,
    EndStray,
    Found,
    FoundDomain,
    FoundProcess,
    NoteDevice,
    Pin,
    ResetDevice,
    Resume,
    Start,
    WipeDisks,
    WriteSeed,
    note_name,
    plan,
    plan_removal,
    seed_name,
)
from node_agent.aspects.machines import Machines
from node_agent.host.guests import Guest, guest_for
from node_agent.host.host_resources import NO_PLACES, HostDevice, Place, Places
from node_agent.host.images import FixedImages
from node_agent.host.slices import Difference
from node_agent.lab.simulated.gpu_partitions import SimulatedFabricManager
from node_agent.lab.simulated.host import SimulatedHost
from node_agent.lab.simulated.machines import (
    SimulatedDisks,
    SimulatedHypervisor,
    SimulatedKeptLogs,
    SimulatedRootDisks,
)
from node_agent.lab.simulated.pci import SimulatedPci, add_pci_devices
from tests.node.guests import IMAGE, SECOND, network_on, slice_on
from tests.node.images import LAB_GUEST

WANTED: Final = guest_for(slice_on(0))
OTHER: Final = guest_for(slice_on(0, SECOND))
GPU: Final = PciAddress("0000:1b:00.0")
SLOT: Final = Place((HostDevice(GPU, "gpu"),), pins=("1",), nodeset="0")
PLACED: Final = replace(WANTED, place=replace(SLOT, pins=("0",)))
PLACES: Final = st.sampled_from([NO_PLACES, {SlotIndex(0): SLOT}])
SEED: Final = seed_name(WANTED)
FOLDER: Final = ("slice0", "slice0/console.log", SEED)
STATES: Final[tuple[DomainState, ...]] = ("running", "paused", "stopped")
NOTHING: Final = Found((), (), ())


def domain(guest: Guest = WANTED, state: DomainState = "running") -> FoundDomain:
    return FoundDomain(guest.name, guest.uuid, state, guest, (guest.mac, guest.tap))


def test_empty_slot_gets_a_seed_image_and_then_a_libvirt_domain() -> None:
    assert plan(WANTED, NOTHING) == (WriteSeed(SEED), Start(WANTED))


def test_virtual_machine_in_its_desired_state_needs_no_change() -> None:
    assert plan(WANTED, Found((domain(),), (), FOLDER)) == ()


def test_existing_seed_image_of_a_guest_is_not_written_again() -> None:
    assert plan(WANTED, Found((), (), ("slice0", SEED))) == (Start(WANTED),)


def test_paused_guest_is_resumed_and_not_started_again() -> None:
    paused = domain(state="paused")
    assert plan(WANTED, Found((paused,), (), FOLDER)) == (Resume(paused),)


def test_stopped_libvirt_domain_of_a_slot_is_destroyed_before_the_next_domain_starts() -> None:
    stopped = domain(state="stopped")
    assert plan(WANTED, Found((stopped,), (), FOLDER)) == (Destroy(stopped), Start(WANTED))


def test_seed_image_lost_under_a_running_guest_is_written_again_and_the_guest_keeps_running() -> None:
    assert plan(WANTED, Found((domain(),), (), ("slice0", "slice0/console.log"))) == (WriteSeed(SEED),)


def test_file_in_place_of_a_slots_disk_folder_is_wiped_before_the_seed_is_written_and_the_guest_stays() -> (
    None
):
    assert plan(WANTED, Found((domain(),), (), ("slice0",))) == (WipeDisks("slice0"), WriteSeed(SEED))


def test_guest_and_files_of_the_previous_tenant_are_removed_before_those_of_the_new_tenant_are_made() -> None:
    old = domain(OTHER)
    found = Found((old,), (), ("slice0", seed_name(OTHER)))
    assert plan(WANTED, found) == (Destroy(old), WipeDisks("slice0"), WriteSeed(SEED), Start(WANTED))


def test_guest_with_another_memory_size_than_ordered_is_replaced() -> None:
    smaller = domain(replace(WANTED, memory_mib=64))
    assert plan(WANTED, Found((smaller,), (), FOLDER)) == (Destroy(smaller), Start(WANTED))


def test_qemu_process_that_outlived_its_libvirt_domain_is_ended_before_its_tap_is_used_again() -> None:
    stray = FoundProcess("slice0", 4711, 99)
    assert plan(WANTED, Found((), (stray,), FOLDER)) == (EndStray(stray), Start(WANTED))


def test_incomplete_seed_image_is_wiped_before_a_new_one_is_written() -> None:
    found = Found((), (), ("slice0", "slice0/.half.new"))
    assert plan(WANTED, found) == (WipeDisks("slice0"), WriteSeed(SEED), Start(WANTED))


def test_pci_devices_are_recorded_before_a_machine_start_and_reset_before_the_next_tenants_start() -> None:
    wanted, note = guest_for(slice_on(0), SLOT), note_name("slice0", GPU)
    checked = (CheckDevices(wanted), NoteDevice(note, GPU), Start(wanted))
    assert plan(wanted, NOTHING) == (WriteSeed(SEED), *checked)
    theirs = Found((), (), ("slice0", seed_name(OTHER), note))
    assert plan(wanted, theirs) == (ResetDevice(GPU), WipeDisks("slice0"), WriteSeed(SEED), *checked)


def test_running_virtual_machine_on_wrong_cpus_is_pinned_without_a_restart() -> None:
    wanted = guest_for(slice_on(0), SLOT)
    moved = domain(PLACED)
    (change,) = plan(wanted, Found((moved,), (), (*FOLDER, note_name("slice0", GPU))))
    assert change == Pin(moved, ("1",))
    assert difference(change, wanted, Found((moved,), (), ())) == Difference(
        "machine.pins", "on CPUs 1", "on CPUs 0"
    )


def test_virtual_machine_without_configured_cpus_stays_on_the_cpus_chosen_by_an_operator() -> None:
    confined = domain(replace(WANTED, place=Place(pins=("0",), nodeset="0-1")))
    assert plan(WANTED, Found((confined,), (), FOLDER)) == ()


def test_removal_of_a_virtual_machine_ends_its_domain_and_process_before_it_wipes_the_disks() -> None:
    stray = FoundProcess("slice0", 4711, 99)
    found = Found((domain(),), (stray,), FOLDER)
    assert plan_removal("slice0", found) == (Destroy(domain()), EndStray(stray), WipeDisks("slice0"))


def test_removal_of_the_virtual_machine_of_an_empty_slot_needs_no_change() -> None:
    assert plan_removal("slice0", NOTHING) == ()


@st.composite
def hosts(draw: st.DrawFn) -> SimulatedHost:
    """Simulated hosts with arbitrary libvirt domains and files in slot 0 and in the next slot: of the tested slice, of
    other slices or of other programs.
    """
    host = SimulatedHost()
    add_pci_devices(host, [SLOT])
    guests = st.sampled_from([WANTED, PLACED, OTHER, replace(WANTED, vcpus=2), guest_for(slice_on(1)), None])
    states = st.sampled_from(STATES)
    with host.change() as state:
        state.taps = [Tap(f"slice{index}") for index in range(2)]
        for guest in draw(
            st.lists(guests, max_size=3, unique_by=lambda guest: guest.name if guest else "slice0")
        ):
            its = (guest.mac, guest.tap) if guest else ()
            name, uuid = (guest.name, guest.uuid) if guest else ("slice0", uuid4())
            devices = tuple(guest.place.addresses) if guest else ()
            state.domains.append(FoundDomain(name, uuid, draw(states), guest, its, devices))
        files = [SEED, seed_name(OTHER), note_name("slice0", GPU), "slice0/.half.new", "slice1/console.log"]
        state.disks = draw(st.lists(st.sampled_from(files), unique=True))
    return host


def machines_on(host: SimulatedHost, places: Places = NO_PLACES) -> Machines:
    hypervisor = SimulatedHypervisor(host, lambda: None, boot_seconds=0)
    return Machines(
        hypervisor,
        SimulatedDisks(host),
        SimulatedRootDisks(host),
        FixedImages((LAB_GUEST,)),
        "qemu",
        kept_logs=SimulatedKeptLogs(host),
        offload=True,
        is_plugged=lambda _: True,
        bus=SimulatedPci(host),
        places=places,
        fabric_manager=SimulatedFabricManager(host),
    )


@given(hosts(), PLACES)
def test_any_observed_state_of_a_slots_virtual_machine_is_changed_to_the_desired_state_by_one_plan(
    host: SimulatedHost, places: Places
) -> None:
    machines, wanted = machines_on(host, places), slice_on(0, image=IMAGE)
    neighbours = neighbours_on(host)
    for step in machines.to_apply(wanted):
        step.run()
    assert machines.to_apply(wanted) == ()
    assert neighbours_on(host) == neighbours


@given(hosts(), PLACES)
def test_virtual_machine_in_any_observed_state_is_removed_completely_and_the_neighbour_slot_stays(
    host: SimulatedHost, places: Places
) -> None:
    machines, neighbours = machines_on(host, places), neighbours_on(host)
    for step in machines.to_remove(network_on(0)):
        step.run()
    assert machines.remains(network_on(0)) == ()
    assert machines.to_remove(network_on(0)) == ()
    assert neighbours_on(host) == neighbours


def neighbours_on(host: SimulatedHost) -> tuple[list[FoundDomain], list[str]]:
    with host.look() as state:
        domains = [each for each in state.domains if each.name == "slice1"]
        return domains, [name for name in state.disks if name.startswith("slice1/")]
