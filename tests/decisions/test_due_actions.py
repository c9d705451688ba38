"""Actions that the control plane must take for an allocation that is stopping, stopped or starting, and when."""

from datetime import datetime, timedelta

import pytest

from control_plane.decisions.deadlines import STOP_WITHIN, ready_within
from control_plane.decisions.ingress import IN_PLACE_WITHIN
from control_plane.processes.allocation import Due, Expire, MissDeadline, Wait, due
from deploy.embedded.lab_catalogue import SMALL
from events.allocations import (
    AllocationFact,
    AllocationStopping,
    LeaseRenewed,
    SliceStopped,
)
from events.envelope import Cause, Recorded
from events.ingress import IngressReserved, IngressRule, Service
from events.values import (
    Epoch,
    Ipv4Address,
    Position,
    ingress_of,
    new_uuid,
    stream_of_allocation,
)
from tasks.orders import ApplySlice, Order, StopSlice
from tests.decisions.histories import (
    ACTIVE,
    ID,
    NOW,
    PROVISIONING,
    REASON,
    SOON,
    STARTING,
    STOPPED,
    STOPPING,
    A,
    B,
    with_specification,
)

LATER = NOW + timedelta(hours=1)
"""The time at which the lease ends."""


def due_actions(
    *facts: AllocationFact, now: datetime = NOW, up_since: datetime | None = None
) -> tuple[Due, ...]:
    stream = stream_of_allocation(ID)
    cause = Cause("key:test", "test", new_uuid(), NOW)
    history = [
        Recorded(Position(at), new_uuid(), stream, at, fact, cause, NOW, Epoch(1))
        for at, fact in enumerate(facts, 1)
    ]
    return due(history, now, up_since=up_since)


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


EXTENDED = LeaseRenewed(ID, NOW + timedelta(days=1))
RULE = IngressReserved(
    ID,
    A,
    ingress_of(new_uuid()),
    IngressRule(Ipv4Address("203.0.113.7"), Service("tcp", 20022, 22), ()),
    NOW + IN_PLACE_WITHIN,
)


@pytest.mark.parametrize(
    ("history", "within"),
    [
        (with_specification(PROVISIONING), ready_within(SMALL)),
        ((*with_specification(STARTING), EXTENDED), ready_within(SMALL)),
        ((*STOPPING, EXTENDED), STOP_WITHIN),
        ((*ACTIVE, RULE, EXTENDED), IN_PLACE_WITHIN),
    ],
    ids=["provisioning", "starting", "stopping", "ingress rule"],
)
def test_deadline_that_passed_while_the_control_plane_was_down_is_extended_from_its_start(
    history: tuple[AllocationFact, ...], within: timedelta
) -> None:
    back = NOW + timedelta(hours=1)
    assert due_actions(*history, now=back) == (MissDeadline(),)
    *_, wait = due_actions(*history, now=back, up_since=back)
    assert isinstance(wait, Wait)
    assert wait.until == back + within
    assert due_actions(*history, now=back + within, up_since=back) == (MissDeadline(),)
    assert due_actions(*history, now=back, up_since=NOW - timedelta(days=1)) == (MissDeadline(),)
