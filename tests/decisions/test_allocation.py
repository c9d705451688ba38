"""Decision functions for allocations: each computes from the recorded events the new events, or refuses."""

from datetime import timedelta

import pytest

from control_plane.decisions import allocation as life
from control_plane.decisions.allocation_states import Allocation, fold, state_name
from control_plane.decisions.leases import LeaseLimit
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
    LeaseRenewed,
    SliceAddressObserved,
    SliceRemovalOverridden,
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
    REASON,
    RELEASING,
    SOON,
    STARTING,
    STOPPED,
    STOPPING,
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
        ((*ACTIVE, INTERRUPTED, AllocationStopping(ID, REASON, SOON)), "stopping"),
        (STOPPED, "stopped"),
        (STARTING, "starting"),
        ((*STARTING, SliceStarting(ID, A), ready(A), ready(B), AllocationActivated(ID)), "active"),
        ((*STOPPED, AllocationReleasing(ID, REASON)), "releasing"),
        (RELEASING, "releasing"),
        ((*PROVISIONING, AllocationFailed(ID, REASON)), "failed"),
        ((*RELEASING, SliceRemoved(ID, A), SliceRemoved(ID, B), AllocationReleased(ID)), "released"),
    ],
)
def test_allocation_history_is_folded_to_its_state(facts: tuple[AllocationFact, ...], name: str) -> None:
    assert state_name(state_after(*facts)) == name


def test_allocation_becomes_active_and_gets_its_lease_when_its_last_slice_is_ready() -> None:
    assert life.slice_ready(state_after(*PROVISIONING), ready(A), NOW) == (ready(A),)
    second = life.slice_ready(state_after(*PROVISIONING, ready(A)), ready(B), NOW)
    assert second == (ready(B), AllocationActivated(ID), GRANTED)


def test_second_report_that_a_slice_is_ready_changes_nothing() -> None:
    assert life.slice_ready(state_after(*PROVISIONING, ready(A)), ready(A), NOW) == ()
    assert life.slice_ready(state_after(*ACTIVE), ready(A), NOW) == ()


def test_allocation_that_becomes_active_after_an_interruption_gets_no_second_lease() -> None:
    interrupted = state_after(*ACTIVE, INTERRUPTED)
    assert life.slice_ready(interrupted, ready(A), NOW) == (ready(A), AllocationActivated(ID))


def test_allocation_released_twice_ends_its_lease_once() -> None:
    assert life.release(state_after(*ACTIVE), REASON) == (AllocationReleasing(ID, REASON), LeaseEnded(ID))
    assert life.release(state_after(*RELEASING), REASON) == ()


def test_release_or_failure_of_an_allocation_that_was_never_active_ends_no_lease() -> None:
    assert life.release(state_after(*PROVISIONING), REASON) == (AllocationReleasing(ID, REASON),)
    assert life.fail(state_after(*PROVISIONING), REASON) == (AllocationFailed(ID, REASON),)


def test_release_of_a_failed_allocation_is_a_conflict() -> None:
    with pytest.raises(Conflict):
        life.release(state_after(*PROVISIONING, AllocationFailed(ID, REASON)), REASON)


def test_allocation_is_released_when_its_last_slice_is_proved_removed() -> None:
    assert life.slice_removed(state_after(*RELEASING), A) == (SliceRemoved(ID, A),)
    partly_removed = state_after(*RELEASING, SliceRemoved(ID, A))
    assert life.slice_removed(partly_removed, A) == ()
    assert life.slice_removed(partly_removed, B) == (SliceRemoved(ID, B), AllocationReleased(ID))


def test_failed_allocation_stays_failed_after_its_slices_are_removed() -> None:
    failed = (*PROVISIONING, AllocationFailed(ID, REASON), SliceRemoved(ID, A))
    assert life.slice_removed(state_after(*failed), B) == (SliceRemoved(ID, B),)
    assert state_name(state_after(*failed, SliceRemoved(ID, B))) == "failed"


def test_allocation_is_released_when_its_last_slice_removal_is_overridden() -> None:
    overridden = SliceRemovalOverridden(ID, A, "its host was destroyed")
    assert life.override_removal(state_after(*RELEASING), A, overridden.reason) == (overridden,)
    partly_removed = state_after(*RELEASING, SliceRemoved(ID, B))
    assert life.override_removal(partly_removed, A, overridden.reason) == (overridden, AllocationReleased(ID))
    assert (
        life.slice_removed(
            state_after(*RELEASING, SliceRemoved(ID, B), overridden, AllocationReleased(ID)), A
        )
        == ()
    )


def test_failed_allocation_stays_failed_after_a_slice_removal_is_overridden() -> None:
    failed = (*PROVISIONING, AllocationFailed(ID, REASON))
    overridden = SliceRemovalOverridden(ID, A, "its host was destroyed")
    assert life.override_removal(state_after(*failed), A, overridden.reason) == (overridden,)
    assert life.slice_removed(state_after(*failed, overridden), A) == ()


@pytest.mark.parametrize("history", [PROVISIONING, ACTIVE, (*RELEASING, SliceRemoved(ID, A))])
def test_override_of_a_slice_removal_that_the_allocation_does_not_await_is_a_conflict(
    history: tuple[AllocationFact, ...],
) -> None:
    with pytest.raises(Conflict, match="has no pending slice removal"):
        life.override_removal(state_after(*history), A, "to see")


@pytest.mark.parametrize("facts", [ACTIVE, STOPPING, STOPPED, STARTING])
def test_lease_is_extended_by_a_renewal_and_never_shortened(facts: tuple[AllocationFact, ...]) -> None:
    later = GRANTED.expires_at - timedelta(minutes=1)
    [renewed] = life.renew(state_after(*facts), later, timedelta(hours=2), ())
    assert renewed == LeaseRenewed(ID, later + timedelta(hours=2))
    extended = state_after(*facts, renewed)
    assert life.expire(extended, GRANTED.expires_at) == ()
    assert life.renew(extended, later, timedelta(hours=2), ()) == ()
    assert life.renew(extended, later, timedelta(minutes=5), ()) == ()


def test_renewal_beyond_a_limit_of_the_lease_is_refused_with_an_objection_for_each_limit() -> None:
    active, limits = state_after(*ACTIVE), (LeaseLimit(7200, "SKU lab.small"), LeaseLimit(3600, "project p"))
    with pytest.raises(
        Conflict, match=r"7201 s is longer than the SKU lab\.small allows \(7200 s\)"
    ) as refused:
        life.renew(active, NOW, timedelta(seconds=7201), limits)
    assert [each.code for each in refused.value.objections] == ["lease_too_long", "lease_too_long"]
    assert life.renew(active, NOW, timedelta(seconds=7200), limits[:1]) == (
        LeaseRenewed(ID, NOW + timedelta(seconds=7200)),
    )


def test_lease_that_is_over_is_not_renewed() -> None:
    with pytest.raises(Conflict, match="the lease ended at") as refused:
        life.renew(state_after(*ACTIVE), GRANTED.expires_at, timedelta(hours=2), ())
    assert [each.code for each in refused.value.objections] == ["lease_over"]


@pytest.mark.parametrize("facts", [PROVISIONING, RELEASING])
def test_lease_of_an_allocation_without_one_or_in_release_is_not_renewed(
    facts: tuple[AllocationFact, ...],
) -> None:
    with pytest.raises(Conflict, match="from the first activation of the allocation until its end"):
        life.renew(state_after(*facts), NOW, timedelta(hours=2), ())


def test_allocation_lease_expires_at_its_end_and_not_before() -> None:
    active = state_after(*ACTIVE)
    assert life.expire(active, GRANTED.expires_at - timedelta(seconds=1)) == ()
    expired, releasing, ended = life.expire(active, GRANTED.expires_at)
    assert expired == LeaseExpired(ID)
    assert isinstance(releasing, AllocationReleasing)
    assert ended == LeaseEnded(ID)


def test_allocation_that_misses_its_deadline_fails_and_names_the_slots_that_are_not_ready() -> None:
    waiting = state_after(*PROVISIONING, ready(A))
    assert life.miss_deadline(waiting, PLACEMENT.deadline - timedelta(seconds=1)) == ()
    [failed] = life.miss_deadline(waiting, PLACEMENT.deadline)
    assert isinstance(failed, AllocationFailed)
    assert "lab-a/1" in failed.reason.message
    assert "lab-a/0" not in failed.reason.message


def test_late_reports_about_a_released_allocation_change_nothing() -> None:
    released = state_after(*RELEASING, SliceRemoved(ID, A), SliceRemoved(ID, B), AllocationReleased(ID))
    observed = SliceAddressObserved(ID, A, NETWORK.mac_address, NETWORK.private_ip, None, "none")
    assert life.slice_ready(released, ready(A), NOW) == ()
    assert life.fail(released, REASON) == ()
    assert life.start_slice(released, A) == ()
    assert life.interrupt_slice(released, INTERRUPTED) == ()
    assert life.observe_address(released, observed) == ()


def test_address_observation_is_recorded_only_if_it_differs_from_the_last_one_of_its_slot() -> None:
    none = SliceAddressObserved(ID, A, NETWORK.mac_address, NETWORK.private_ip, None, "none")
    bound = SliceAddressObserved(ID, A, NETWORK.mac_address, NETWORK.private_ip, NETWORK.private_ip, "bound")
    assert life.is_new(PROVISIONING, none)
    assert not life.is_new((*PROVISIONING, none), none)
    assert life.is_new((*PROVISIONING, none, bound), none)


def test_impossible_allocation_history_is_refused_when_it_is_folded_to_a_state() -> None:
    with pytest.raises(AssertionError):
        fold((AllocationActivated(ID),))
    with pytest.raises(AssertionError):
        fold((*PROVISIONING, AllocationReleased(ID)))


def test_repeated_stop_of_an_allocation_records_one_stop() -> None:
    stopping = (AllocationStopping(ID, REASON, SOON),)
    assert life.stop(state_after(*ACTIVE), REASON, SOON) == stopping
    assert life.stop(state_after(*ACTIVE, INTERRUPTED), REASON, SOON) == stopping
    assert life.stop(state_after(*STOPPING), REASON, SOON) == ()
    assert life.stop(state_after(*STOPPED), REASON, SOON) == ()


def test_repeated_start_of_an_allocation_records_one_start() -> None:
    assert life.start(state_after(*STOPPED), REASON, SOON) == (AllocationStarting(ID, REASON, SOON),)
    assert life.start(state_after(*STARTING), REASON, SOON) == ()
    assert life.start(state_after(*ACTIVE), REASON, SOON) == ()


@pytest.mark.parametrize("facts", [PROVISIONING, RELEASING, (*PROVISIONING, AllocationFailed(ID, REASON))])
def test_stop_or_start_of_an_allocation_that_is_not_in_use_is_a_conflict(
    facts: tuple[AllocationFact, ...],
) -> None:
    state = state_after(*facts)
    for decide in (life.stop, life.start):
        with pytest.raises(Conflict, match=f"is {state_name(state)}"):
            decide(state, REASON, SOON)


def test_start_of_an_allocation_that_is_stopping_is_a_conflict() -> None:
    with pytest.raises(Conflict, match="is stopping"):
        life.start(state_after(*STOPPING), REASON, SOON)


def test_allocation_is_stopped_when_its_last_slice_is_stopped() -> None:
    off = SliceStopped(ID, A, True)
    assert life.slice_stopped(state_after(*STOPPING), A, forced=True) == (off,)
    partly_removed = state_after(*STOPPING, off)
    assert life.slice_stopped(partly_removed, A, forced=True) == ()
    last = SliceStopped(ID, B, False)
    assert life.slice_stopped(partly_removed, B, forced=False) == (last, AllocationStopped(ID))


def test_reports_about_a_slice_that_is_stopping_or_stopped_change_nothing() -> None:
    for facts in (STOPPING, STOPPED):
        state = state_after(*facts)
        assert life.slice_ready(state, ready(A), NOW) == ()
        assert life.interrupt_slice(state, INTERRUPTED) == ()
        assert life.start_slice(state, A) == ()


def test_allocation_that_is_started_again_gets_no_second_lease() -> None:
    state = state_after(*STARTING, ready(A))
    assert life.slice_ready(state, ready(B), NOW) == (ready(B), AllocationActivated(ID))


@pytest.mark.parametrize("facts", [STOPPING, STOPPED, STARTING])
def test_lease_of_a_stopped_allocation_expires_at_its_end(facts: tuple[AllocationFact, ...]) -> None:
    assert life.expire(state_after(*facts), GRANTED.expires_at - timedelta(seconds=1)) == ()
    expired, releasing, ended = life.expire(state_after(*facts), GRANTED.expires_at)
    assert (expired, ended) == (LeaseExpired(ID), LeaseEnded(ID))
    assert isinstance(releasing, AllocationReleasing)


def test_allocation_not_stopped_by_its_deadline_fails_and_names_the_slots_that_are_still_running() -> None:
    state = state_after(*STOPPING, SliceStopped(ID, A, False))
    assert life.miss_deadline(state, SOON - timedelta(seconds=1)) == ()
    failed, _ended = life.miss_deadline(state, SOON)
    assert isinstance(failed, AllocationFailed)
    assert failed.reason == Reason(
        "deadline_missed", f"these slices were not stopped by the deadline {SOON.isoformat()}: {B}"
    )
