"""The life of an allocation: given what happened, when something is asked, then this follows or is refused."""

from datetime import UTC, datetime, timedelta

import pytest

from control_plane.decisions import allocation as life
from control_plane.decisions.allocation_states import Allocation, fold, state_name
from control_plane.decisions.refusals import Conflict
from control_plane.decisions.slots import network_of
from events.allocations import (
    AllocationActivated,
    AllocationFact,
    AllocationFailed,
    AllocationPlaced,
    AllocationReleased,
    AllocationReleasing,
    AllocationRequested,
    LeaseEnded,
    LeaseExpired,
    LeaseGranted,
    PlacedSlot,
    SliceAddressObserved,
    SliceInterrupted,
    SliceReady,
    SliceRemovalWaived,
    SliceRemoved,
    SliceStarting,
)
from events.facts import Reason
from events.values import (
    ImageName,
    ProjectId,
    SkuName,
    allocation_of,
    ipv4_subnet,
    new_uuid,
    slot_id,
)

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
ID = allocation_of(new_uuid())
A, B = slot_id("lab-a/0"), slot_id("lab-a/1")
WHY = Reason("because", "of the test")
PLACED = tuple(PlacedSlot(slot, network_of(slot, ipv4_subnet("10.100.1.0/24"), "default")) for slot in (A, B))
NETWORK = PLACED[0].network
REQUESTED = AllocationRequested(
    ID, ProjectId("p"), SkuName("lab.small"), "private-nat", ImageName("lab-guest"), (), 3600, 2, {}
)
PLACEMENT = AllocationPlaced(ID, PLACED, NOW + timedelta(minutes=2))
PROVISIONING: tuple[AllocationFact, ...] = (REQUESTED, PLACEMENT)


def ready(slot: str) -> SliceReady:
    return SliceReady(ID, slot_id(slot), NETWORK.private_ip, 22, "SSH-2.0-x")


GRANTED = LeaseGranted(ID, NOW, NOW + timedelta(hours=1))
ACTIVE = (*PROVISIONING, ready(A), ready(B), AllocationActivated(ID), GRANTED)
INTERRUPTED = SliceInterrupted(ID, A, WHY, NOW + timedelta(minutes=2))
RELEASING = (*ACTIVE, AllocationReleasing(ID, WHY), LeaseEnded(ID))


def state_after(*facts: AllocationFact) -> Allocation:
    state = fold(facts)
    assert state is not None
    return state


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        (PROVISIONING, "placed"),
        ((*PROVISIONING, SliceStarting(ID, A)), "provisioning"),
        (ACTIVE, "active"),
        ((*ACTIVE, INTERRUPTED), "starting"),
        ((*ACTIVE, INTERRUPTED, ready(A), AllocationActivated(ID)), "active"),
        (RELEASING, "releasing"),
        ((*PROVISIONING, AllocationFailed(ID, WHY)), "failed"),
        ((*RELEASING, SliceRemoved(ID, A), SliceRemoved(ID, B), AllocationReleased(ID)), "released"),
    ],
)
def test_each_history_leads_to_its_state(facts: tuple[AllocationFact, ...], name: str) -> None:
    assert state_name(state_after(*facts)) == name


def test_only_the_last_ready_slice_activates_and_grants_the_lease() -> None:
    assert life.slice_ready(state_after(*PROVISIONING), ready(A), NOW) == (ready(A),)
    second = life.slice_ready(state_after(*PROVISIONING, ready(A)), ready(B), NOW)
    assert second == (ready(B), AllocationActivated(ID), GRANTED)


def test_readiness_told_twice_changes_nothing_the_second_time() -> None:
    assert life.slice_ready(state_after(*PROVISIONING, ready(A)), ready(A), NOW) == ()
    assert life.slice_ready(state_after(*ACTIVE), ready(A), NOW) == ()


def test_coming_back_after_an_interruption_grants_no_second_lease() -> None:
    interrupted = state_after(*ACTIVE, INTERRUPTED)
    assert life.slice_ready(interrupted, ready(A), NOW) == (ready(A), AllocationActivated(ID))


def test_release_ends_the_lease_once() -> None:
    assert life.release(state_after(*ACTIVE), WHY) == (AllocationReleasing(ID, WHY), LeaseEnded(ID))
    assert life.release(state_after(*RELEASING), WHY) == ()


def test_an_allocation_that_never_was_active_has_no_lease_to_end() -> None:
    assert life.release(state_after(*PROVISIONING), WHY) == (AllocationReleasing(ID, WHY),)
    assert life.fail(state_after(*PROVISIONING), WHY) == (AllocationFailed(ID, WHY),)


def test_a_failed_allocation_refuses_release() -> None:
    with pytest.raises(Conflict):
        life.release(state_after(*PROVISIONING, AllocationFailed(ID, WHY)), WHY)


def test_only_the_last_proof_of_absence_ends_the_release() -> None:
    assert life.slice_removed(state_after(*RELEASING), A) == (SliceRemoved(ID, A),)
    left = state_after(*RELEASING, SliceRemoved(ID, A))
    assert life.slice_removed(left, A) == ()
    assert life.slice_removed(left, B) == (SliceRemoved(ID, B), AllocationReleased(ID))


def test_a_failed_allocation_stays_failed_when_its_slots_are_proved_empty() -> None:
    failed = (*PROVISIONING, AllocationFailed(ID, WHY), SliceRemoved(ID, A))
    assert life.slice_removed(state_after(*failed), B) == (SliceRemoved(ID, B),)
    assert state_name(state_after(*failed, SliceRemoved(ID, B))) == "failed"


def test_waiving_the_last_proof_ends_the_release_like_the_proof() -> None:
    waived = SliceRemovalWaived(ID, A, "its host burned down")
    assert life.waive_removal(state_after(*RELEASING), A, waived.why) == (waived,)
    left = state_after(*RELEASING, SliceRemoved(ID, B))
    assert life.waive_removal(left, A, waived.why) == (waived, AllocationReleased(ID))
    assert (
        life.slice_removed(state_after(*RELEASING, SliceRemoved(ID, B), waived, AllocationReleased(ID)), A)
        == ()
    )


def test_a_failed_allocation_stays_failed_when_its_proofs_are_waived() -> None:
    failed = (*PROVISIONING, AllocationFailed(ID, WHY))
    waived = SliceRemovalWaived(ID, A, "its host burned down")
    assert life.waive_removal(state_after(*failed), A, waived.why) == (waived,)
    assert life.slice_removed(state_after(*failed, waived), A) == ()


@pytest.mark.parametrize("history", [PROVISIONING, ACTIVE, (*RELEASING, SliceRemoved(ID, A))])
def test_only_proof_that_is_waited_for_can_be_waived(history: tuple[AllocationFact, ...]) -> None:
    with pytest.raises(Conflict, match="does not wait"):
        life.waive_removal(state_after(*history), A, "to see")


def test_a_lease_expires_at_its_end_and_not_before() -> None:
    active = state_after(*ACTIVE)
    assert life.expire(active, GRANTED.expires_at - timedelta(seconds=1)) == ()
    expired, releasing, ended = life.expire(active, GRANTED.expires_at)
    assert expired == LeaseExpired(ID)
    assert isinstance(releasing, AllocationReleasing)
    assert ended == LeaseEnded(ID)


def test_a_missed_deadline_fails_and_names_the_slots_that_were_waited_for() -> None:
    waiting = state_after(*PROVISIONING, ready(A))
    assert life.miss_deadline(waiting, PLACEMENT.deadline - timedelta(seconds=1)) == ()
    [failed] = life.miss_deadline(waiting, PLACEMENT.deadline)
    assert isinstance(failed, AllocationFailed)
    assert "lab-a/1" in failed.reason.message
    assert "lab-a/0" not in failed.reason.message


def test_news_that_comes_too_late_changes_nothing() -> None:
    released = state_after(*RELEASING, SliceRemoved(ID, A), SliceRemoved(ID, B), AllocationReleased(ID))
    seen = SliceAddressObserved(ID, A, NETWORK.mac_address, NETWORK.private_ip, None, "none")
    assert life.slice_ready(released, ready(A), NOW) == ()
    assert life.fail(released, WHY) == ()
    assert life.start_slice(released, A) == ()
    assert life.interrupt_slice(released, INTERRUPTED) == ()
    assert life.observe_address(released, seen) == ()


def test_an_observation_is_news_only_when_it_differs_from_the_last_of_its_slot() -> None:
    none = SliceAddressObserved(ID, A, NETWORK.mac_address, NETWORK.private_ip, None, "none")
    bound = SliceAddressObserved(ID, A, NETWORK.mac_address, NETWORK.private_ip, NETWORK.private_ip, "bound")
    assert life.is_news(PROVISIONING, none)
    assert not life.is_news((*PROVISIONING, none), none)
    assert life.is_news((*PROVISIONING, none, bound), none)


def test_a_history_that_no_decision_makes_is_refused() -> None:
    with pytest.raises(AssertionError):
        fold((AllocationActivated(ID),))
    with pytest.raises(AssertionError):
        fold((*PROVISIONING, AllocationReleased(ID)))
