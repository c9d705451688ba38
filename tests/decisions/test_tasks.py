"""Tests of the decision functions for requested tasks: each function returns the new events that follow from the
recorded events, or raises a refusal.
"""

from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TypeVar
from uuid import UUID

import pytest

from control_plane.decisions import allocation_states
from control_plane.decisions import tasks as life
from control_plane.decisions.allocation import retry_removal
from control_plane.decisions.refusals import Conflict, Malformed
from control_plane.decisions.tasks import Task, fold, state_name
from control_plane.processes.allocation import Wait, newest_order_of
from control_plane.processes.tasks import Due, TimeOut, Try, due
from events.allocations import (
    AllocationFact,
    AllocationReleasing,
    SliceRemovalRetried,
    SliceRemoved,
)
from events.envelope import Cause, Recorded
from events.facts import Fact, Reason
from events.tasks import (
    TaskCancelled,
    TaskCancelRequested,
    TaskFact,
    TaskFailed,
    TaskRequested,
    TaskRetried,
    TaskSucceeded,
)
from events.values import Epoch, NodeId, Position, SlotId, StreamId
from tasks.catalogue import CATALOGUE
from tasks.operations import DriftReport, NodeVerify, OperationCancel
from tasks.orders import ApplySlice, Order, RemoveSlice
from tests.decisions.histories import PLACEMENT, REQUESTED, A, B

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
ID = UUID("01936c3e-7b21-7c40-8a5b-2f1d9c7e4a10")
LATER = timedelta(days=1)
INSPECTION = CATALOGUE["drift.report"]
REQUEST = TaskRequested(ID, "drift.report", NodeId("lab-a"), A, REQUESTED.allocation_id)
UNREADABLE = Reason("host_unreadable", "reason of the test")
PERMANENT = Reason("not_wanted", "reason of the test")
STOPPED = Reason("cancelled", "reason of the test")


def failed(attempt: int, reason: Reason = UNREADABLE, *, final: bool = False) -> TaskFailed:
    return TaskFailed(ID, attempt, reason, final=final)


F = TypeVar("F", bound=Fact)


def recorded(*facts: F, first: int = 1) -> tuple[Recorded[F], ...]:
    """Return these facts as events recorded in the ledger, one second apart."""
    return tuple(
        Recorded(
            Position(position),
            UUID(int=position),
            StreamId("s"),
            version,
            fact,
            Cause("test", "test", ID, NOW),
            NOW + timedelta(seconds=version - 1),
            Epoch(1),
        )
        for fact, position, version in zip(facts, count(first), count(1))
    )


def state_after(*facts: TaskFact) -> Task:
    state = fold(recorded(*facts))
    assert state is not None
    return state


PLACED: tuple[AllocationFact, ...] = (REQUESTED, PLACEMENT)
RELEASING = (*PLACED, AllocationReleasing(REQUESTED.allocation_id, STOPPED))


def newest_order(*facts: AllocationFact, slot: SlotId = A) -> Order:
    found = newest_order_of(recorded(*facts), slot)
    assert found is not None
    return found


def due_actions(*facts: TaskFact, now: datetime = NOW) -> tuple[Due, ...]:
    return due(recorded(*facts), now, newest_order(*PLACED))


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        ((REQUEST,), "trying"),
        ((REQUEST, failed(1)), "trying"),
        ((REQUEST, failed(1), TaskSucceeded(ID, 2, "{}")), "done"),
        ((REQUEST, failed(1, final=True)), "failed"),
        ((REQUEST, failed(1, Reason("no_answer", ""), final=True)), "expired"),
        ((REQUEST, failed(1, Reason("poisoned", ""), final=True)), "poisoned"),
        ((REQUEST, TaskCancelRequested(ID)), "cancelling"),
        ((REQUEST, TaskCancelRequested(ID), TaskCancelled(ID, STOPPED)), "cancelled"),
        ((REQUEST, TaskCancelRequested(ID), TaskSucceeded(ID, 1, "{}")), "done"),
        ((REQUEST, failed(1, final=True), TaskRetried(ID)), "trying"),
    ],
)
def test_state_of_a_task_follows_from_its_last_event(facts: tuple[TaskFact, ...], name: str) -> None:
    assert state_name(state_after(*facts)) == name


def test_impossible_task_history_is_refused_when_it_is_folded_to_a_state() -> None:
    with pytest.raises(AssertionError, match="TaskRetried cannot follow Trying"):
        fold(recorded(REQUEST, TaskRetried(ID)))


def test_task_with_a_transient_failure_is_retried_up_to_the_limit_in_the_catalogue() -> None:
    history: list[TaskFact] = [REQUEST]
    for attempt in range(1, 2 + INSPECTION.bounds.retries):
        assert state_name(state_after(*history)) == "trying"
        history += life.failed(state_after(*history), attempt, UNREADABLE, INSPECTION)
    assert state_name(state_after(*history)) == "failed"


def test_task_with_a_permanent_failure_is_not_retried() -> None:
    assert life.failed(state_after(REQUEST), 1, PERMANENT, INSPECTION) == (failed(1, PERMANENT, final=True),)


def test_retried_task_gets_all_its_attempts_again() -> None:
    retried = state_after(REQUEST, failed(1, final=True), TaskRetried(ID))
    assert life.failed(retried, 2, UNREADABLE, INSPECTION) == (failed(2),)


@pytest.mark.parametrize("attempt", [1, 3])
def test_report_of_a_different_attempt_does_not_change_the_task(attempt: int) -> None:
    second = state_after(REQUEST, failed(1))
    assert life.done(second, attempt, "{}") == ()
    assert life.failed(second, attempt, UNREADABLE, INSPECTION) == ()


def test_task_result_reported_twice_is_recorded_once() -> None:
    assert life.done(state_after(REQUEST), 1, "{}") == (TaskSucceeded(ID, 1, "{}"),)
    assert life.done(state_after(REQUEST, TaskSucceeded(ID, 1, "{}")), 1, "{}") == ()


def test_task_that_was_never_sent_is_cancelled_at_once() -> None:
    first, second = life.cancel(state_after(REQUEST), never_sent=True)
    assert isinstance(first, TaskCancelRequested)
    assert isinstance(second, TaskCancelled)


def test_task_that_was_sent_is_cancelled_after_its_node_reports_the_stop() -> None:
    cancel_requested = TaskCancelRequested(ID)
    assert life.cancel(state_after(REQUEST), never_sent=False) == (cancel_requested,)
    stopping = state_after(REQUEST, cancel_requested)
    assert life.cancel(stopping, never_sent=False) == ()
    assert life.failed(stopping, 1, STOPPED, INSPECTION) == (TaskCancelled(ID, STOPPED),)
    assert life.stopped(stopping, 1, was_running=True) == ()
    assert [type(fact) for fact in life.stopped(stopping, 1, was_running=False)] == [TaskCancelled]


def test_task_that_fails_while_it_is_cancelled_is_not_retried() -> None:
    assert life.failed(state_after(REQUEST, TaskCancelRequested(ID)), 1, UNREADABLE, INSPECTION) == (
        failed(1, final=True),
    )


@pytest.mark.parametrize(
    "end", [TaskSucceeded(ID, 1, "{}"), failed(1, final=True)], ids=lambda fact: type(fact).__name__
)
def test_cancel_of_a_finished_task_is_a_conflict(end: TaskFact) -> None:
    with pytest.raises(Conflict, match="can no longer be cancelled"):
        life.cancel(state_after(REQUEST, end), never_sent=False)


def test_retry_of_a_task_that_did_not_fail_is_a_conflict() -> None:
    assert life.retry(state_after(REQUEST, failed(1, final=True))) == (TaskRetried(ID),)
    for facts in ((REQUEST,), (REQUEST, TaskCancelRequested(ID)), (REQUEST, TaskSucceeded(ID, 1, "{}"))):
        with pytest.raises(Conflict):
            life.retry(state_after(*facts))


def test_refused_task_request_reports_all_objections() -> None:
    with pytest.raises(Conflict) as refused:
        life.ask(REQUEST, None, frozenset({"node.verify/1"}), INSPECTION)
    assert [each.code for each in refused.value.objections] == ["no_desired_state", "unsupported_by_agent"]


def test_request_to_remove_the_ingress_of_an_allocation_that_is_not_being_released_is_a_conflict() -> None:
    request = TaskRequested(ID, "ingress.remove", REQUEST.node_id, A, REQUEST.allocation_id)
    with pytest.raises(Conflict, match="release the allocation first"):
        life.ask(request, newest_order(*PLACED), None, CATALOGUE["ingress.remove"])
    assert life.ask(request, newest_order(*RELEASING), None, CATALOGUE["ingress.remove"]) == request


@pytest.mark.parametrize("kind", ["slice.apply", "operation.cancel", "shell.run"])
def test_request_for_a_task_kind_that_cannot_be_requested_is_refused(kind: str) -> None:
    with pytest.raises(Malformed):
        life.kind_requestable(kind)


def test_due_attempt_of_a_task_without_new_events_is_the_same_nine_seconds_later() -> None:
    first, second = due_actions(REQUEST)[0], due_actions(REQUEST, now=NOW + timedelta(seconds=9))[0]
    assert isinstance(first, Try)
    assert first == second
    assert first.operation.body == DriftReport(order=newest_order(*PLACED))


def test_each_attempt_of_a_task_has_a_new_operation_id() -> None:
    second = due_actions(REQUEST, failed(1), now=NOW + timedelta(seconds=9))[0]
    first = due_actions(REQUEST)[0]
    assert isinstance(first, Try)
    assert isinstance(second, Try)
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.operation.operation_id != second.operation.operation_id
    assert first.operation.task_id == second.operation.task_id == ID


def test_pause_before_the_next_attempt_of_a_task_doubles_after_each_failure() -> None:
    pauses = []
    for attempts in range(1, 4):
        (waits,) = due_actions(REQUEST, *(failed(each) for each in range(1, attempts + 1)))
        assert isinstance(waits, Wait)
        assert waits.until is not None
        pauses.append((waits.until - NOW).total_seconds() - attempts)
    assert pauses == [2, 4, 8]


@pytest.mark.parametrize("facts", [(REQUEST,), (REQUEST, TaskCancelRequested(ID)), (REQUEST, failed(1))])
def test_every_wait_of_a_task_has_a_deadline_after_which_the_task_times_out(
    facts: tuple[TaskFact, ...],
) -> None:
    moments = [each.until for each in due_actions(*facts) if isinstance(each, Wait)]
    assert moments
    assert None not in moments
    assert due_actions(*facts, now=NOW + LATER) == (TimeOut(),)


def test_task_deadline_is_the_maximum_age_plus_the_time_limit() -> None:
    _try, waits = due_actions(REQUEST)
    assert isinstance(waits, Wait)
    assert waits.until == NOW + INSPECTION.bounds.maximum_age + INSPECTION.bounds.time_limit


def test_task_that_timed_out_fails_permanently_with_code_no_answer() -> None:
    (fact,) = life.time_out(state_after(REQUEST), NOW + LATER)
    assert isinstance(fact, TaskFailed)
    assert fact.final
    assert fact.reason.code == "no_answer"
    (fact,) = life.time_out(state_after(REQUEST, TaskCancelRequested(ID)), NOW + LATER)
    assert isinstance(fact, TaskCancelled)
    assert life.time_out(state_after(REQUEST), NOW) == ()


def test_task_that_is_being_cancelled_sends_a_cancel_operation_for_its_attempt() -> None:
    running, stop = due_actions(REQUEST)[0], due_actions(REQUEST, TaskCancelRequested(ID))[0]
    assert isinstance(running, Try)
    assert isinstance(stop, Try)
    assert stop.operation.body == OperationCancel(target=running.operation.operation_id)


def test_finished_task_has_no_due_actions() -> None:
    assert due_actions(REQUEST, TaskSucceeded(ID, 1, "{}")) == ()


def test_operation_of_a_node_task_contains_no_order() -> None:
    request = TaskRequested(ID, "node.verify", NodeId("lab-a"), None, None)
    attempt = due(recorded(request), NOW, None)[0]
    assert isinstance(attempt, Try)
    assert attempt.operation.body == NodeVerify()


def test_newest_order_of_a_slot_follows_from_the_last_event_about_it() -> None:
    assert isinstance(newest_order(*PLACED).body, ApplySlice)
    assert isinstance(newest_order(*RELEASING).body, RemoveSlice)
    assert newest_order_of(recorded(REQUESTED), A) is None
    assert newest_order_of((), A) is None


def test_retried_removal_is_a_new_order_for_its_slot_only() -> None:
    retried = (*RELEASING, SliceRemovalRetried(REQUESTED.allocation_id, A))
    assert newest_order(*retried).order_id != newest_order(*RELEASING).order_id
    assert newest_order(*retried).token > newest_order(*RELEASING).token
    assert newest_order(*retried).body == newest_order(*RELEASING).body
    assert newest_order(*retried, slot=B) == newest_order(*RELEASING, slot=B)


def test_removal_retry_recorded_before_the_release_does_not_change_the_newest_order() -> None:
    # No decision records this order of events, but a fold must not depend on that.
    odd = (*PLACED, SliceRemovalRetried(REQUESTED.allocation_id, A), RELEASING[-1])
    assert newest_order(*odd).token.position == len(odd)


def test_retry_of_a_slice_removal_that_the_allocation_does_not_await_is_a_conflict() -> None:
    def after(*facts: AllocationFact) -> tuple[AllocationFact, ...]:
        state = allocation_states.fold(facts)
        assert state is not None
        return retry_removal(state, A)

    assert after(*RELEASING) == (SliceRemovalRetried(REQUESTED.allocation_id, A),)
    for facts in (PLACED, (*RELEASING, SliceRemoved(REQUESTED.allocation_id, A))):
        with pytest.raises(Conflict, match="has no pending slice removal"):
            after(*facts)
