"""Tests of the deadline of a release, after which the release is recorded as overdue, with a reason for each slot that
is not proved empty.
"""

from datetime import datetime, timedelta
from typing import Final

import pytest

from control_plane.decisions import allocation as life
from control_plane.decisions.allocation_states import fold
from control_plane.decisions.deadlines import RELEASE_WITHIN
from control_plane.decisions.fleet.removals import EndedOrder, MissingProof
from control_plane.decisions.fleet.slots import quarantine_overdue
from control_plane.dispatcher.dispatch import Uptime
from control_plane.processes.allocation import Due, RecordOverdue, Wait, due
from events.allocations import (
    AllocationFact,
    AllocationFailed,
    ReleaseOverdue,
    SliceRemovalRetried,
    SliceRemoved,
)
from events.facts import Reason, RemainingSlot
from events.slot_states import Claimed, Free, Quarantined, Releasing
from events.slots import SlotQuarantined
from tasks.orders import Order
from tests.decisions.histories import ACTIVE, ID, NOW, PROVISIONING, REASON, RELEASING, A, B
from tests.decisions.test_leases import recorded

DEADLINE: Final = NOW + RELEASE_WITHIN
PROOF: Final = "proof that the slots are empty"
OVERDUE: Final = ReleaseOverdue(ID, DEADLINE, (RemainingSlot(A, REASON), RemainingSlot(B, REASON)))


def due_at(now: datetime, *facts: AllocationFact, up_since: datetime | None = None) -> tuple[Due, ...]:
    """Return the actions that are due at the time `now` for an allocation with these facts, recorded at `NOW`."""
    return due(recorded(*facts), now, up_since=up_since)


@pytest.mark.parametrize("ended", [RELEASING, (*PROVISIONING, AllocationFailed(ID, REASON))])
def test_release_that_is_not_proved_by_its_deadline_is_overdue_once(
    ended: tuple[AllocationFact, ...],
) -> None:
    assert due_at(NOW, *ended)[-1] == Wait(PROOF, DEADLINE)
    *orders, command = due_at(DEADLINE, *ended)
    assert command == RecordOverdue(DEADLINE)
    assert [each.slot_id for each in orders if isinstance(each, Order)] == [A, B]
    assert due_at(DEADLINE, *ended, OVERDUE)[-1] == Wait(PROOF)
    assert due_at(DEADLINE, *ended, OVERDUE, SliceRemovalRetried(ID, A))[-1] == Wait(PROOF)


def test_failed_allocation_with_all_slots_proved_empty_has_no_release_deadline() -> None:
    proved = (*ACTIVE, AllocationFailed(ID, REASON), SliceRemoved(ID, A), SliceRemoved(ID, B))
    assert due_at(DEADLINE, *proved) == (Wait(PROOF),)


def test_deadline_of_a_release_counts_from_the_start_of_the_control_plane_if_the_start_is_later() -> None:
    back = NOW + timedelta(hours=1)
    assert due_at(back, *RELEASING, up_since=back)[-1] == Wait(PROOF, back + RELEASE_WITHIN)
    late = back + RELEASE_WITHIN
    assert due_at(late, *RELEASING, up_since=back)[-1] == RecordOverdue(late)
    assert due_at(DEADLINE, *RELEASING, up_since=NOW - timedelta(days=1))[-1] == RecordOverdue(DEADLINE)


def test_overdue_release_is_recorded_once_with_the_slots_that_are_not_proved_empty() -> None:
    reasons = {A: REASON, B: Reason("other", "another reason")}
    state = fold((*RELEASING, SliceRemoved(ID, A)))
    assert state is not None
    assert life.record_overdue(state, DEADLINE, DEADLINE - timedelta(seconds=1), reasons) == ()
    [fact] = life.record_overdue(state, DEADLINE, DEADLINE, reasons)
    assert fact == ReleaseOverdue(ID, DEADLINE, (RemainingSlot(B, reasons[B]),))
    again = fold((*RELEASING, SliceRemoved(ID, A), fact))
    assert again is not None
    assert life.record_overdue(again, DEADLINE, DEADLINE, reasons) == ()
    active = fold(ACTIVE)
    assert active is not None
    assert life.record_overdue(active, DEADLINE, DEADLINE, reasons) == ()


def test_slot_of_an_overdue_release_is_quarantined_with_the_reason_only_if_it_is_being_released() -> None:
    assert quarantine_overdue(A, Releasing(ID), ID, REASON) == (SlotQuarantined(A, ID, REASON, ()),)
    for state in (Quarantined(ID, None), Claimed(ID), Free()):
        assert quarantine_overdue(A, state, ID, REASON) == ()


LEFT: Final = Quarantined(ID, Reason("absence_not_proved", "node lab-a still finds 1 leftover"))
REFUSED: Final = EndedOrder("refused", Reason("stale_token", "the slot has a newer order"))


@pytest.mark.parametrize(
    ("missing", "code", "parts"),
    [
        (MissingProof(Releasing(ID), False, NOW, None), "removal_pending", ["node lab-a sends heartbeats"]),
        (MissingProof(LEFT, False, NOW, None), "absence_not_proved", ["still finds 1 leftover"]),
        (
            MissingProof(LEFT, False, NOW, REFUSED),
            "removal_refused",
            ["refused", "has a newer order", "retry"],
        ),
        (
            MissingProof(Releasing(ID), False, NOW, EndedOrder("poisoned", None)),
            "removal_failed",
            ["ended in state poisoned on node lab-a; retry"],
        ),
        (MissingProof(Releasing(ID), True, None, REFUSED), "node_unreachable", ["it never sent a heartbeat"]),
        (
            MissingProof(LEFT, True, NOW, None),
            "node_unreachable",
            ["last heartbeat came at 2026-03-01T12:00:00+00:00", "still finds 1 leftover", "force-release"],
        ),
    ],
)
def test_reason_of_a_slot_that_is_not_proved_empty_names_the_cause_and_what_to_do(
    missing: MissingProof, code: str, parts: list[str]
) -> None:
    reason = missing.reason(A)
    assert reason.code == code
    for part in parts:
        assert part in reason.message


def test_uptime_begins_again_after_a_pause_and_after_a_step_of_the_clock_back() -> None:
    uptime, second = Uptime(), timedelta(seconds=1)
    for now in (NOW, NOW + second, NOW + 20 * second):
        uptime.observe(now)
        assert uptime.since == NOW
    for now in (NOW + timedelta(hours=1), NOW):
        uptime.observe(now)
        assert uptime.since == now
