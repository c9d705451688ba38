"""Decision functions for slots, in each slot state: approval, release, proof of emptiness, and force-release."""

from typing import get_args

import pytest

from control_plane.decisions.refusals import Conflict
from control_plane.decisions.slots import (
    approve,
    awaits_approval,
    begin_release,
    force_release_slot,
    free,
    holder_awaiting_proof,
    quarantine,
)
from events.facts import Reason
from events.slot_states import (
    Claimed,
    Discovered,
    Free,
    Quarantined,
    Releasing,
    SlotState,
    SlotStateName,
    holder_of,
    quarantine_reason,
    slot_state,
    slot_state_name,
)
from events.slots import SlotForceReleased, SlotReleased, SlotReleasing
from events.values import SkuName, allocation_of, new_uuid
from tests.decisions.histories import ID, NETWORK, A

OTHER = allocation_of(new_uuid())
LEFT = ("tap slice0",)
REASON = Reason("absence_not_proved", "node lab-a still finds 1 leftovers of the slice: tap slice0")
STATES: tuple[SlotState, ...] = (
    Discovered(),
    Free(),
    Claimed(ID),
    Releasing(ID),
    Quarantined(ID, REASON),
)


def names(states: list[SlotState]) -> list[str]:
    return [slot_state_name(each) for each in states]


def test_every_slot_state_is_read_back_unchanged_from_its_database_row() -> None:
    assert names([*STATES]) == [*get_args(SlotStateName)]
    for each in STATES:
        assert slot_state(slot_state_name(each), holder_of(each), quarantine_reason(each)) == each


@pytest.mark.parametrize("name", ["claimed", "releasing", "quarantined"])
def test_slot_row_in_a_state_that_requires_an_allocation_is_refused_without_an_allocation(
    name: SlotStateName,
) -> None:
    with pytest.raises(ValueError, match=f"the row of a {name} slot names no allocation"):
        slot_state(name, None, None)


def test_only_a_discovered_slot_can_be_approved() -> None:
    assert names([each for each in STATES if awaits_approval(each)]) == ["discovered"]
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
