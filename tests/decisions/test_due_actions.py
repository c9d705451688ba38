"""Actions that the control plane must take for an allocation that is stopping, stopped or starting, and when."""

from datetime import datetime, timedelta

from control_plane.processes.allocation import Due, Expire, MissDeadline, Wait, due
from events.allocations import (
    AllocationFact,
    AllocationStopping,
    LeaseRenewed,
    SliceStopped,
)
from events.envelope import Cause, Recorded
from events.values import (
    Epoch,
    Position,
    new_uuid,
    stream_of_allocation,
)
from tasks.orders import ApplySlice, Order, StopSlice
from tests.decisions.histories import ACTIVE, ID, NOW, REASON, SOON, STARTING, STOPPED, STOPPING, A, B

LATER = NOW + timedelta(hours=1)
"""The time at which the lease ends."""


def due_actions(*facts: AllocationFact, now: datetime = NOW) -> tuple[Due, ...]:
    stream = stream_of_allocation(ID)
    cause = Cause("key:test", "test", new_uuid(), NOW)
    history = [
        Recorded(Position(at), new_uuid(), stream, at, fact, cause, NOW, Epoch(1))
        for at, fact in enumerate(facts, 1)
    ]
    return due(history, now)


def orders(*facts: AllocationFact) -> list[Order]:
    return [each for each in due_actions(*facts) if isinstance(each, Order)]


def test_stopping_allocation_has_a_stop_order_for_each_slice_that_still_runs() -> None:
    assert [(each.slot_id, type(each.body)) for each in orders(*STOPPING)] == [(A, StopSlice), (B, StopSlice)]
    remaining = orders(*STOPPING, SliceStopped(ID, A, False))
    assert [each.slot_id for each in remaining] == [B]
    assert remaining[0].token.position == len(STOPPING)


def test_stop_of_an_allocation_is_awaited_until_its_deadline_or_the_end_of_the_allocation_lease() -> None:
    assert due_actions(*STOPPING)[-1] == Wait("proof that the slices are off", SOON)
    slow_stop = (*ACTIVE, AllocationStopping(ID, REASON, LATER + timedelta(minutes=1)))
    assert due_actions(*slow_stop)[-1] == Wait("proof that the slices are off", LATER)
    assert due_actions(*STOPPING, now=SOON) == (MissDeadline(),)
    assert due_actions(*slow_stop, now=LATER) == (Expire(),)


def test_stopped_allocation_has_no_order_and_waits_until_its_lease_ends() -> None:
    assert due_actions(*STOPPED) == (Wait("a start request", LATER),)
    assert due_actions(*STOPPED, now=LATER) == (Expire(),)


def test_renewed_lease_of_a_stopped_allocation_ends_at_its_new_time() -> None:
    renewed = (*STOPPED, LeaseRenewed(ID, LATER + timedelta(hours=1)))
    assert due_actions(*renewed, now=LATER) == (Wait("a start request", LATER + timedelta(hours=1)),)
    assert due_actions(*renewed, now=LATER + timedelta(hours=1)) == (Expire(),)


def test_starting_allocation_has_a_new_order_for_each_slice_that_is_not_ready() -> None:
    first, again = orders(*ACTIVE[:2]), orders(*STARTING)
    assert [(each.slot_id, type(each.body)) for each in again] == [(A, ApplySlice), (B, ApplySlice)]
    assert [each.body for each in again] == [each.body for each in first]
    assert {each.order_id for each in again}.isdisjoint(each.order_id for each in first)
    assert [each.slot_id for each in orders(*STARTING, ACTIVE[2])] == [B]
    assert due_actions(*STARTING, now=SOON) == (MissDeadline(),)
