"""From anything that may be found of a slot to what is wanted, and to nothing."""

from dataclasses import replace
from typing import Final
from uuid import uuid4

from hypothesis import given
from hypothesis import strategies as st

from node_agent.guests import Guest, guest_for
from node_agent.images import FixedImages
from node_agent.lab.simulated.host import SimulatedHost
from node_agent.lab.simulated.machines import SimulatedDisks, SimulatedHypervisor
from node_agent.lab.simulated.pci import SimulatedPci
from node_agent.links import Tap
from node_agent.machine_plans import (
    Destroy,
    DomainState,
    EndStray,
    Found,
    FoundDomain,
    FoundProcess,
    Resume,
    Start,
    WipeDisks,
    WriteSeed,
    plan,
    plan_removal,
    seed_name,
)
from node_agent.machines import Machines
from node_agent.places import NO_PLACES, Places
from tests.node.guests import IMAGE, SECOND, network_on, slice_on
from tests.node.images import LAB_GUEST

WANTED: Final = guest_for(slice_on(0))
OTHER: Final = guest_for(slice_on(0, SECOND))
SEED: Final = seed_name(WANTED)
FOLDER: Final = ("slice0", "slice0/console.log", SEED)
STATES: Final[tuple[DomainState, ...]] = ("running", "paused", "stopped")
NOTHING: Final = Found((), (), ())


def domain(guest: Guest = WANTED, state: DomainState = "running") -> FoundDomain:
    return FoundDomain(guest.name, guest.uuid, state, guest, (guest.mac, guest.tap))


def test_an_empty_slot_gets_a_seed_and_then_a_domain() -> None:
    assert plan(WANTED, NOTHING) == (WriteSeed(SEED), Start(WANTED))


def test_a_slot_as_wanted_is_left_alone() -> None:
    assert plan(WANTED, Found((domain(),), (), FOLDER)) == ()


def test_a_seed_that_is_there_is_not_written_again() -> None:
    assert plan(WANTED, Found((), (), ("slice0", SEED))) == (Start(WANTED),)


def test_a_paused_guest_goes_on_and_is_not_started_again() -> None:
    paused = domain(state="paused")
    assert plan(WANTED, Found((paused,), (), FOLDER)) == (Resume(paused),)


def test_a_stopped_domain_gives_its_name_free_before_the_next_starts() -> None:
    stopped = domain(state="stopped")
    assert plan(WANTED, Found((stopped,), (), FOLDER)) == (Destroy(stopped), Start(WANTED))


def test_a_seed_lost_under_a_running_guest_is_replaced_and_the_guest_does_not_notice() -> None:
    assert plan(WANTED, Found((domain(),), (), ("slice0", "slice0/console.log"))) == (WriteSeed(SEED),)


def test_another_tenants_guest_and_files_go_before_anything_of_the_new_one_comes() -> None:
    old = domain(OTHER)
    found = Found((old,), (), ("slice0", seed_name(OTHER)))
    assert plan(WANTED, found) == (Destroy(old), WipeDisks("slice0"), WriteSeed(SEED), Start(WANTED))


def test_a_guest_of_another_size_is_replaced() -> None:
    smaller = domain(replace(WANTED, memory_mib=64))
    assert plan(WANTED, Found((smaller,), (), FOLDER)) == (Destroy(smaller), Start(WANTED))


def test_a_process_that_outlived_its_domain_is_ended_before_its_tap_is_used_again() -> None:
    stray = FoundProcess("slice0", 4711, 99)
    assert plan(WANTED, Found((), (stray,), FOLDER)) == (EndStray(stray), Start(WANTED))


def test_a_half_written_seed_is_wiped() -> None:
    found = Found((), (), ("slice0", "slice0/.half.new"))
    assert plan(WANTED, found) == (WipeDisks("slice0"), WriteSeed(SEED), Start(WANTED))


def test_removal_ends_what_runs_before_it_wipes_the_disks() -> None:
    stray = FoundProcess("slice0", 4711, 99)
    found = Found((domain(),), (stray,), FOLDER)
    assert plan_removal("slice0", found) == (Destroy(domain()), EndStray(stray), WipeDisks("slice0"))


def test_nothing_is_removed_from_an_empty_slot() -> None:
    assert plan_removal("slice0", NOTHING) == ()


@st.composite
def hosts(draw: st.DrawFn) -> SimulatedHost:
    """Hosts with anything of ours, of another tenant's or of a stranger's in and beside slot 0."""
    host = SimulatedHost()
    guests = st.sampled_from([WANTED, OTHER, replace(WANTED, vcpus=2), guest_for(slice_on(1)), None])
    states = st.sampled_from(STATES)
    with host.change() as state:
        state.taps = [Tap(f"slice{index}") for index in range(2)]
        for guest in draw(
            st.lists(guests, max_size=3, unique_by=lambda guest: guest.name if guest else "slice0")
        ):
            its = (guest.mac, guest.tap) if guest else ()
            name, uuid = (guest.name, guest.uuid) if guest else ("slice0", uuid4())
            state.domains.append(FoundDomain(name, uuid, draw(states), guest, its))
        files = [SEED, seed_name(OTHER), "slice0/.half.new", "slice1/console.log"]
        state.disks = draw(st.lists(st.sampled_from(files), unique=True))
    return host


def machines_on(host: SimulatedHost, places: Places = NO_PLACES) -> Machines:
    hypervisor = SimulatedHypervisor(host, lambda: None, boot_seconds=0)
    return Machines(
        hypervisor,
        SimulatedDisks(host),
        FixedImages((LAB_GUEST,)),
        "qemu",
        offload=True,
        is_plugged=lambda _: True,
        bus=SimulatedPci(host),
        places=places,
    )


@given(hosts())
def test_whatever_is_found_becomes_what_is_wanted_and_then_nothing_is_left_to_do(host: SimulatedHost) -> None:
    machines, wanted = machines_on(host), slice_on(0, image=IMAGE)
    neighbours = neighbours_on(host)
    for step in machines.to_apply(wanted):
        step.run()
    assert machines.to_apply(wanted) == ()
    assert neighbours_on(host) == neighbours


@given(hosts())
def test_whatever_is_found_is_taken_away_and_the_neighbour_stays(host: SimulatedHost) -> None:
    machines, neighbours = machines_on(host), neighbours_on(host)
    for step in machines.to_remove(network_on(0)):
        step.run()
    assert machines.remains(network_on(0)) == ()
    assert machines.to_remove(network_on(0)) == ()
    assert neighbours_on(host) == neighbours


def neighbours_on(host: SimulatedHost) -> tuple[list[FoundDomain], list[str]]:
    with host.look() as state:
        domains = [each for each in state.domains if each.name == "slice1"]
        return domains, [name for name in state.disks if name.startswith("slice1/")]
