"""The life of a task that an admin asked for: given what happened, when something is asked, then this follows or is
refused.
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
from control_plane.processes.allocation import Wait, wish_of
from control_plane.processes.tasks import Due, GiveUp, Try, due
from events.allocations import (
    AllocationFact,
    AllocationReleasing,
    SliceRemovalRetried,
    SliceRemoved,
)
from events.envelope import Cause, Recorded
from events.facts import Fact, Reason
from events.tasks import (
    TaskAsked,
    TaskCancelAsked,
    TaskCancelled,
    TaskFact,
    TaskFailed,
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
LOOK = CATALOGUE["drift.report"]
ASKED = TaskAsked(ID, "drift.report", NodeId("lab-a"), A, REQUESTED.allocation_id)
UNREADABLE = Reason("host_unreadable", "of the test")
WRONG = Reason("not_wanted", "of the test")
STOPPED = Reason("cancelled", "of the test")


def failed(attempt: int, reason: Reason = UNREADABLE, *, final: bool = False) -> TaskFailed:
    return TaskFailed(ID, attempt, reason, final=final)


F = TypeVar("F", bound=Fact)


def told(*facts: F, first: int = 1) -> tuple[Recorded[F], ...]:
    """Facts as the ledger holds them, a second after one another."""
    return tuple(
        Recorded(
            Position(place),
            UUID(int=place),
            StreamId("s"),
            version,
            fact,
            Cause("test", "test", ID, NOW),
            NOW + timedelta(seconds=version - 1),
            Epoch(1),
        )
        for fact, place, version in zip(facts, count(first), count(1))
    )


def state_after(*facts: TaskFact) -> Task:
    state = fold(told(*facts))
    assert state is not None
    return state


PLACED: tuple[AllocationFact, ...] = (REQUESTED, PLACEMENT)
RELEASING = (*PLACED, AllocationReleasing(REQUESTED.allocation_id, STOPPED))


def wish(*facts: AllocationFact, slot: SlotId = A) -> Order:
    found = wish_of(told(*facts), slot)
    assert found is not None
    return found


def what_is_due(*facts: TaskFact, now: datetime = NOW) -> tuple[Due, ...]:
    return due(told(*facts), now, wish(*PLACED))


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        ((ASKED,), "trying"),
        ((ASKED, failed(1)), "trying"),
        ((ASKED, failed(1), TaskSucceeded(ID, 2, "{}")), "done"),
        ((ASKED, failed(1, final=True)), "failed"),
        ((ASKED, failed(1, Reason("no_answer", ""), final=True)), "expired"),
        ((ASKED, failed(1, Reason("poisoned", ""), final=True)), "poisoned"),
        ((ASKED, TaskCancelAsked(ID)), "cancelling"),
        ((ASKED, TaskCancelAsked(ID), TaskCancelled(ID, STOPPED)), "cancelled"),
        ((ASKED, TaskCancelAsked(ID), TaskSucceeded(ID, 1, "{}")), "done"),
        ((ASKED, failed(1, final=True), TaskRetried(ID)), "trying"),
    ],
)
def test_each_history_leads_to_its_state(facts: tuple[TaskFact, ...], name: str) -> None:
    assert state_name(state_after(*facts)) == name


def test_a_history_that_nobody_could_have_decided_is_refused() -> None:
    with pytest.raises(AssertionError, match="TaskRetried cannot follow Trying"):
        fold(told(ASKED, TaskRetried(ID)))


def test_a_failure_that_may_pass_is_tried_again_as_often_as_the_catalogue_says() -> None:
    history: list[TaskFact] = [ASKED]
    for attempt in range(1, 2 + LOOK.bounds.retries):
        assert state_name(state_after(*history)) == "trying"
        history += life.failed(state_after(*history), attempt, UNREADABLE, LOOK)
    assert state_name(state_after(*history)) == "failed"


def test_a_failure_that_stays_is_the_last() -> None:
    assert life.failed(state_after(ASKED), 1, WRONG, LOOK) == (failed(1, WRONG, final=True),)


def test_a_retry_begins_a_round_with_all_its_tries() -> None:
    anew = state_after(ASKED, failed(1, final=True), TaskRetried(ID))
    assert life.failed(anew, 2, UNREADABLE, LOOK) == (failed(2),)


@pytest.mark.parametrize("attempt", [1, 3])
def test_what_is_said_of_another_try_decides_nothing(attempt: int) -> None:
    second = state_after(ASKED, failed(1))
    assert life.done(second, attempt, "{}") == ()
    assert life.failed(second, attempt, UNREADABLE, LOOK) == ()


def test_a_result_told_twice_counts_once() -> None:
    assert life.done(state_after(ASKED), 1, "{}") == (TaskSucceeded(ID, 1, "{}"),)
    assert life.done(state_after(ASKED, TaskSucceeded(ID, 1, "{}")), 1, "{}") == ()


def test_a_task_that_no_node_knows_of_is_cancelled_at_once() -> None:
    first, second = life.cancel(state_after(ASKED), never_sent=True)
    assert isinstance(first, TaskCancelAsked)
    assert isinstance(second, TaskCancelled)


def test_a_task_that_was_sent_is_cancelled_by_its_node() -> None:
    asked = TaskCancelAsked(ID)
    assert life.cancel(state_after(ASKED), never_sent=False) == (asked,)
    stopping = state_after(ASKED, asked)
    assert life.cancel(stopping, never_sent=False) == ()
    assert life.failed(stopping, 1, STOPPED, LOOK) == (TaskCancelled(ID, STOPPED),)
    assert life.stopped(stopping, 1, was_running=True) == ()
    assert [type(fact) for fact in life.stopped(stopping, 1, was_running=False)] == [TaskCancelled]


def test_who_fails_while_being_cancelled_is_not_tried_again() -> None:
    assert life.failed(state_after(ASKED, TaskCancelAsked(ID)), 1, UNREADABLE, LOOK) == (
        failed(1, final=True),
    )


@pytest.mark.parametrize(
    "end", [TaskSucceeded(ID, 1, "{}"), failed(1, final=True)], ids=lambda fact: type(fact).__name__
)
def test_what_is_over_cannot_be_cancelled(end: TaskFact) -> None:
    with pytest.raises(Conflict, match="nothing of it runs"):
        life.cancel(state_after(ASKED, end), never_sent=False)


def test_only_what_came_to_a_bad_end_is_tried_again() -> None:
    assert life.retry(state_after(ASKED, failed(1, final=True))) == (TaskRetried(ID),)
    for facts in ((ASKED,), (ASKED, TaskCancelAsked(ID)), (ASKED, TaskSucceeded(ID, 1, "{}"))):
        with pytest.raises(Conflict):
            life.retry(state_after(*facts))


def test_every_reason_against_a_task_is_told_at_once() -> None:
    with pytest.raises(Conflict) as refused:
        life.ask(ASKED, None, frozenset({"node.verify/1"}), LOOK)
    assert [each.code for each in refused.value.objections] == ["nothing_wanted", "not_spoken"]


def test_exposure_stays_while_a_slice_is_kept() -> None:
    asked = TaskAsked(ID, "exposure.remove", ASKED.node_id, A, ASKED.allocation_id)
    with pytest.raises(Conflict, match="and its reservation with it"):
        life.ask(asked, wish(*PLACED), None, CATALOGUE["exposure.remove"])
    assert life.ask(asked, wish(*RELEASING), None, CATALOGUE["exposure.remove"]) == asked


@pytest.mark.parametrize("kind", ["slice.apply", "operation.cancel", "shell.run"])
def test_what_is_no_task_to_ask_for_is_refused(kind: str) -> None:
    with pytest.raises(Malformed):
        life.kind_askable(kind)


def test_asking_twice_what_is_due_gives_the_same_operation() -> None:
    first, second = what_is_due(ASKED)[0], what_is_due(ASKED, now=NOW + timedelta(seconds=9))[0]
    assert isinstance(first, Try)
    assert first == second
    assert first.operation.body == DriftReport(wish=wish(*PLACED))


def test_each_try_is_an_operation_of_its_own() -> None:
    second = what_is_due(ASKED, failed(1), now=NOW + timedelta(seconds=9))[0]
    first = what_is_due(ASKED)[0]
    assert isinstance(first, Try)
    assert isinstance(second, Try)
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.operation.operation_id != second.operation.operation_id
    assert first.operation.task_id == second.operation.task_id == ID


def test_the_pause_before_the_next_try_doubles() -> None:
    pauses = []
    for tried in range(1, 4):
        (waits,) = what_is_due(ASKED, *(failed(each) for each in range(1, tried + 1)))
        assert isinstance(waits, Wait)
        assert waits.until is not None
        pauses.append((waits.until - NOW).total_seconds() - tried)
    assert pauses == [2, 4, 8]


@pytest.mark.parametrize("facts", [(ASKED,), (ASKED, TaskCancelAsked(ID)), (ASKED, failed(1))])
def test_every_wait_has_a_deadline_and_then_the_task_is_given_up(facts: tuple[TaskFact, ...]) -> None:
    moments = [each.until for each in what_is_due(*facts) if isinstance(each, Wait)]
    assert moments
    assert None not in moments
    assert what_is_due(*facts, now=NOW + LATER) == (GiveUp(),)


def test_a_deadline_lies_behind_the_last_moment_of_the_work() -> None:
    _try, waits = what_is_due(ASKED)
    assert isinstance(waits, Wait)
    assert waits.until == NOW + LOOK.bounds.maximum_age + LOOK.bounds.time_limit


def test_what_was_given_up_says_why() -> None:
    (fact,) = life.give_up(state_after(ASKED), NOW, NOW)
    assert isinstance(fact, TaskFailed)
    assert fact.final
    assert fact.reason.code == "no_answer"
    (fact,) = life.give_up(state_after(ASKED, TaskCancelAsked(ID)), NOW, NOW)
    assert isinstance(fact, TaskCancelled)
    assert life.give_up(state_after(ASKED), NOW + LATER, NOW) == ()


def test_a_task_being_cancelled_has_its_node_stop_the_try() -> None:
    running, stop = what_is_due(ASKED)[0], what_is_due(ASKED, TaskCancelAsked(ID))[0]
    assert isinstance(running, Try)
    assert isinstance(stop, Try)
    assert stop.operation.body == OperationCancel(target=running.operation.operation_id)


def test_nothing_is_due_of_what_is_over() -> None:
    assert what_is_due(ASKED, TaskSucceeded(ID, 1, "{}")) == ()


def test_a_task_about_a_host_brings_no_wish() -> None:
    asked = TaskAsked(ID, "node.verify", NodeId("lab-a"), None, None)
    tried = due(told(asked), NOW, None)[0]
    assert isinstance(tried, Try)
    assert tried.operation.body == NodeVerify()


def test_the_wish_of_a_slot_is_what_was_wanted_of_it_last() -> None:
    assert isinstance(wish(*PLACED).body, ApplySlice)
    assert isinstance(wish(*RELEASING).body, RemoveSlice)
    assert wish_of(told(REQUESTED), A) is None
    assert wish_of((), A) is None


def test_a_removal_wanted_anew_is_a_new_order_for_that_slot_alone() -> None:
    anew = (*RELEASING, SliceRemovalRetried(REQUESTED.allocation_id, A))
    assert wish(*anew).order_id != wish(*RELEASING).order_id
    assert wish(*anew).token > wish(*RELEASING).token
    assert wish(*anew).body == wish(*RELEASING).body
    assert wish(*anew, slot=B) == wish(*RELEASING, slot=B)


def test_a_removal_wanted_anew_before_the_release_counts_no_more() -> None:
    # It cannot be decided in this order, but a fold must not depend on that.
    odd = (*PLACED, SliceRemovalRetried(REQUESTED.allocation_id, A), RELEASING[-1])
    assert wish(*odd).token.position == len(odd)


def test_only_a_slot_that_is_still_to_be_emptied_is_emptied_anew() -> None:
    def after(*facts: AllocationFact) -> tuple[AllocationFact, ...]:
        state = allocation_states.fold(facts)
        assert state is not None
        return retry_removal(state, A)

    assert after(*RELEASING) == (SliceRemovalRetried(REQUESTED.allocation_id, A),)
    for facts in (PLACED, (*RELEASING, SliceRemoved(REQUESTED.allocation_id, A))):
        with pytest.raises(Conflict, match="does not wait for"):
            after(*facts)
