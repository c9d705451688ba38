"""Decision functions for slots, in each slot state: approval, release, proof of emptiness, and force-release."""

import ipaddress
from typing import get_args

import pytest

from control_plane.decisions.fleet.macs import derived_macs
from control_plane.decisions.fleet.slots import (
    approve,
    awaits_approval,
    begin_release,
    force_release_slot,
    free,
    holder_awaiting_proof,
    network_of,
    quarantine,
    reprovision,
    retire,
)
from control_plane.decisions.refusals import Conflict
from events.facts import Reason
from events.slot_states import (
    Claimed,
    Discovered,
    Free,
    Quarantined,
    Releasing,
    Retired,
    SlotState,
    SlotStateName,
    holder_of,
    reason_of,
    slot_state,
    slot_state_name,
)
from events.slots import SlotForceReleased, SlotReleased, SlotReleasing, SlotRetired
from events.values import Ipv4Subnet, NodeId, SkuName, SlotIndex, allocation_of, index_of, new_uuid, slot_of
from tests.decisions.histories import DERIVED, ID, NETWORK, A

OTHER = allocation_of(new_uuid())
LEFT = ("tap slice0",)
REASON = Reason("absence_not_proved", "node lab-a still finds 1 leftover of the slice: tap slice0")
STATES: tuple[SlotState, ...] = (
    Discovered(),
    Free(),
    Claimed(ID),
    Releasing(ID),
    Quarantined(ID, REASON),
    Retired(Reason("retired_by_admin", "sold")),
)


def names(states: list[SlotState]) -> list[str]:
    return [slot_state_name(each) for each in states]


def test_every_slot_state_is_read_back_unchanged_from_its_database_row() -> None:
    assert names([*STATES]) == [*get_args(SlotStateName)]
    for each in STATES:
        assert slot_state(slot_state_name(each), holder_of(each), reason_of(each)) == each


@pytest.mark.parametrize("name", ["claimed", "releasing", "quarantined"])
def test_slot_row_in_a_state_that_requires_an_allocation_is_refused_without_an_allocation(
    name: SlotStateName,
) -> None:
    with pytest.raises(ValueError, match=f"the row of a {name} slot names no allocation"):
        slot_state(name, None, None)


def test_only_a_discovered_or_a_retired_slot_awaits_an_approval() -> None:
    assert names([each for each in STATES if awaits_approval(each)]) == ["discovered", "retired"]
    with pytest.raises(Conflict, match="is quarantined, not awaiting approval"):
        approve(A, Quarantined(ID, REASON), [SkuName("lab.small")], NETWORK)


def test_only_a_claimed_slot_is_released_by_its_allocation() -> None:
    assert names([each for each in STATES if begin_release(A, each, ID)]) == ["claimed"]
    assert begin_release(A, Claimed(ID), ID) == (SlotReleasing(A, ID),)


def test_proof_of_an_empty_slot_counts_only_while_its_slice_is_being_removed() -> None:
    awaiting = ["releasing", "quarantined"]
    assert names([each for each in STATES if free(A, each, ID, LEFT)]) == awaiting
    assert names([each for each in STATES if quarantine(A, each, ID, LEFT)]) == awaiting
    assert free(A, Releasing(ID), ID, LEFT) == (SlotReleased(A, ID, LEFT),)


def test_release_or_quarantine_of_a_slot_for_an_allocation_that_does_not_hold_it_records_no_event() -> None:
    for each in STATES:
        assert begin_release(A, each, OTHER) == ()
        assert free(A, each, OTHER, LEFT) == ()
        assert quarantine(A, each, OTHER, LEFT) == ()


@pytest.mark.parametrize("state", [Discovered(), Free(), Claimed(ID)], ids=slot_state_name)
def test_slot_that_is_neither_releasing_nor_quarantined_cannot_be_force_released(state: SlotState) -> None:
    with pytest.raises(Conflict, match=f"is {slot_state_name(state)} and does not await the proof"):
        holder_awaiting_proof(A, state)


def test_force_release_event_of_a_slot_names_the_allocation_that_held_the_slot() -> None:
    found = force_release_slot(A, Quarantined(ID, REASON), "rack removed", LEFT)
    assert found == SlotForceReleased(A, ID, "rack removed", LEFT)


@pytest.mark.parametrize("state", STATES, ids=slot_state_name)
def test_only_a_free_slot_is_retired_and_reprovisioned_and_a_retired_one_stays_retired(
    state: SlotState,
) -> None:
    name = slot_state_name(state)
    if name == "free":
        assert retire(A, state, (), "sold") == (SlotRetired(A, "sold"),)
        assert reprovision(A, state, NETWORK, DERIVED, (), reason="leaked").previous == NETWORK
        return
    with pytest.raises(Conflict, match=f"slot {A} is {name}, not free"):
        reprovision(A, state, NETWORK, DERIVED, (), reason="leaked")
    if name == "retired":
        assert retire(A, state, (), "sold") == ()
        return
    with pytest.raises(Conflict, match=f"slot {A} is {name}, not free"):
        retire(A, state, (), "sold")


def test_slot_reprovisioned_repeatedly_gets_each_derived_mac_and_each_address_before_one_repeats() -> None:
    first = network_of(A, Ipv4Subnet("10.100.1.0/24"), DERIVED)
    found = [first]
    for _ in range(len(derived_macs(A))):
        found.append(reprovision(A, Free(), found[-1], DERIVED, (), reason="leaked").network)
    assert [each.mac_address for each in found] == [*derived_macs(A), derived_macs(A)[0]]
    assert [each.private_ip for each in found[:5]] == [
        f"10.100.1.{each + index_of(A)}" for each in (10, 74, 138, 202, 10)
    ]


def test_addresses_of_all_slots_of_a_node_are_different_and_within_its_subnet() -> None:
    subnet = ipaddress.IPv4Network("10.100.1.0/24")
    found: list[str] = []
    for index in range(64):
        slot = slot_of(NodeId("lab-a"), SlotIndex(index))
        network = network_of(slot, Ipv4Subnet(str(subnet)), DERIVED)
        own = [network.private_ip]
        while (
            network := reprovision(slot, Free(), network, DERIVED, (), reason="leaked").network
        ).private_ip != own[0]:
            own.append(network.private_ip)
        found += own
    assert len(found) == len({*found})
    assert {ipaddress.IPv4Address(each) for each in found} <= {*list(subnet.hosts())[1:]}


def test_reprovisioned_slot_gets_the_first_mac_that_no_other_slot_uses_or_is_refused_if_there_is_none() -> (
    None
):
    macs = derived_macs(A)
    network = network_of(A, Ipv4Subnet("10.100.1.0/24"), DERIVED)
    assert reprovision(A, Free(), network, DERIVED, macs[:3], reason="leaked").network.mac_address == macs[3]
    with pytest.raises(Conflict, match=f"every MAC derived for slot {A} is in use in L2 domain default"):
        reprovision(A, Free(), network, DERIVED, macs, reason="leaked")
