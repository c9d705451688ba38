"""What is due for an allocation that is switched off, kept off, and switched on again."""

from datetime import datetime, timedelta

from control_plane.processes.allocation import Due, Expire, MissDeadline, Wait, due
from events.allocations import (
    AllocationFact,
    AllocationStopping,
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
from tests.decisions.histories import ACTIVE, ID, NOW, SOON, STARTING, STOPPED, STOPPING, WHY, A, B

LATER = NOW + timedelta(hours=1)
"""The end of the lease."""


def what_is_due(*facts: AllocationFact, now: datetime = NOW) -> tuple[Due, ...]:
    stream = stream_of_allocation(ID)
    cause = Cause("key:test", "test", new_uuid(), NOW)
    history = [
        Recorded(Position(at), new_uuid(), stream, at, fact, cause, NOW, Epoch(1))
        for at, fact in enumerate(facts, 1)
    ]
    return due(history, now)


def orders(*facts: AllocationFact) -> list[Order]:
    return [each for each in what_is_due(*facts) if isinstance(each, Order)]


def test_each_slice_that_is_still_on_is_ordered_off() -> None:
    assert [(each.slot_id, type(each.body)) for each in orders(*STOPPING)] == [(A, StopSlice), (B, StopSlice)]
    left = orders(*STOPPING, SliceStopped(ID, A, False))
    assert [each.slot_id for each in left] == [B]
    assert left[0].token.position == len(STOPPING)


def test_a_stop_is_waited_for_until_its_deadline_or_the_end_of_the_lease() -> None:
    assert what_is_due(*STOPPING)[-1] == Wait("proof that the slices are off", SOON)
    long = (*ACTIVE, AllocationStopping(ID, WHY, LATER + timedelta(minutes=1)))
    assert what_is_due(*long)[-1] == Wait("proof that the slices are off", LATER)
    assert what_is_due(*STOPPING, now=SOON) == (MissDeadline(),)
    assert what_is_due(*long, now=LATER) == (Expire(),)


def test_nothing_is_ordered_of_a_stopped_allocation_until_its_lease_ends() -> None:
    assert what_is_due(*STOPPED) == (Wait("being started", LATER),)
    assert what_is_due(*STOPPED, now=LATER) == (Expire(),)


def test_each_slice_that_is_not_back_is_ordered_on_anew() -> None:
    first, again = orders(*ACTIVE[:2]), orders(*STARTING)
    assert [(each.slot_id, type(each.body)) for each in again] == [(A, ApplySlice), (B, ApplySlice)]
    assert [each.body for each in again] == [each.body for each in first]
    assert {each.order_id for each in again}.isdisjoint(each.order_id for each in first)
    assert [each.slot_id for each in orders(*STARTING, ACTIVE[2])] == [B]
    assert what_is_due(*STARTING, now=SOON) == (MissDeadline(),)
