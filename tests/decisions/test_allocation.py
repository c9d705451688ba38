"""The life of an allocation: given what happened, when something is asked, then this follows or is refused."""

from datetime import timedelta

import pytest

from control_plane.decisions import allocation as life
from control_plane.decisions.allocation_states import Allocation, fold, state_name
from control_plane.decisions.refusals import Conflict
from events.allocations import (
    AllocationActivated,
    AllocationFact,
    AllocationFailed,
    AllocationReleased,
    AllocationReleasing,
    AllocationStarting,
    AllocationStopped,
    AllocationStopping,
    LeaseEnded,
    LeaseExpired,
    SliceAddressObserved,
    SliceRemovalWaived,
    SliceRemoved,
    SliceStarting,
    SliceStopped,
)
from events.facts import Reason
from tests.decisions.histories import (
    ACTIVE,
    GRANTED,
    ID,
    INTERRUPTED,
    NETWORK,
    NOW,
    PLACEMENT,
    PROVISIONING,
    RELEASING,
    SOON,
    STARTING,
    STOPPED,
    STOPPING,
    WHY,
    A,
    B,
    ready,
)


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
        (STOPPING, "stopping"),
        ((*ACTIVE, INTERRUPTED, AllocationStopping(ID, WHY, SOON)), "stopping"),
        (STOPPED, "stopped"),
        (STARTING, "starting"),
        ((*STARTING, SliceStarting(ID, A), ready(A), ready(B), AllocationActivated(ID)), "active"),
        ((*STOPPED, AllocationReleasing(ID, WHY)), "releasing"),
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


def test_an_active_allocation_is_stopped_once_however_often_that_is_asked() -> None:
    stopping = (AllocationStopping(ID, WHY, SOON),)
    assert life.stop(state_after(*ACTIVE), WHY, SOON) == stopping
    assert life.stop(state_after(*ACTIVE, INTERRUPTED), WHY, SOON) == stopping
    assert life.stop(state_after(*STOPPING), WHY, SOON) == ()
    assert life.stop(state_after(*STOPPED), WHY, SOON) == ()


def test_a_stopped_allocation_is_started_once_however_often_that_is_asked() -> None:
    assert life.start(state_after(*STOPPED), WHY, SOON) == (AllocationStarting(ID, WHY, SOON),)
    assert life.start(state_after(*STARTING), WHY, SOON) == ()
    assert life.start(state_after(*ACTIVE), WHY, SOON) == ()


@pytest.mark.parametrize("facts", [PROVISIONING, RELEASING, (*PROVISIONING, AllocationFailed(ID, WHY))])
def test_what_is_not_in_use_is_neither_stopped_nor_started(facts: tuple[AllocationFact, ...]) -> None:
    state = state_after(*facts)
    for decide in (life.stop, life.start):
        with pytest.raises(Conflict, match=f"is {state_name(state)}"):
            decide(state, WHY, SOON)


def test_what_is_being_stopped_is_not_started_before_it_is_off() -> None:
    with pytest.raises(Conflict, match="is stopping"):
        life.start(state_after(*STOPPING), WHY, SOON)


def test_only_the_last_slice_to_be_off_makes_the_allocation_stopped() -> None:
    off = SliceStopped(ID, A, True)
    assert life.slice_stopped(state_after(*STOPPING), A, forced=True) == (off,)
    left = state_after(*STOPPING, off)
    assert life.slice_stopped(left, A, forced=True) == ()
    last = SliceStopped(ID, B, False)
    assert life.slice_stopped(left, B, forced=False) == (last, AllocationStopped(ID))


def test_what_is_said_of_a_slice_that_is_to_be_off_comes_too_late() -> None:
    for facts in (STOPPING, STOPPED):
        state = state_after(*facts)
        assert life.slice_ready(state, ready(A), NOW) == ()
        assert life.interrupt_slice(state, INTERRUPTED) == ()
        assert life.start_slice(state, A) == ()


def test_starting_again_grants_no_second_lease() -> None:
    state = state_after(*STARTING, ready(A))
    assert life.slice_ready(state, ready(B), NOW) == (ready(B), AllocationActivated(ID))


@pytest.mark.parametrize("facts", [STOPPING, STOPPED, STARTING])
def test_the_lease_runs_on_while_nothing_runs(facts: tuple[AllocationFact, ...]) -> None:
    assert life.expire(state_after(*facts), GRANTED.expires_at - timedelta(seconds=1)) == ()
    expired, releasing, ended = life.expire(state_after(*facts), GRANTED.expires_at)
    assert (expired, ended) == (LeaseExpired(ID), LeaseEnded(ID))
    assert isinstance(releasing, AllocationReleasing)


def test_an_allocation_that_cannot_be_switched_off_in_time_fails_and_says_what_is_still_on() -> None:
    state = state_after(*STOPPING, SliceStopped(ID, A, False))
    assert life.miss_deadline(state, SOON - timedelta(seconds=1)) == ()
    failed, _ended = life.miss_deadline(state, SOON)
    assert isinstance(failed, AllocationFailed)
    assert failed.reason == Reason("deadline_missed", f"not stopped by {SOON.isoformat()}: {B}")
