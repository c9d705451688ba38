"""Calls under a deadline: the answer, the error, or neither in time."""

import threading
from concurrent.futures import Future, wait
from time import monotonic
from typing import Any

import pytest

from node_agent.drivers.deadlines import Deadlines, Overdue


def test_an_answer_in_time_is_given() -> None:
    assert Deadlines().within(5, lambda: 42) == 42


def test_an_error_in_time_is_raised_as_it_was() -> None:
    def fails() -> None:
        raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        Deadlines().within(5, fails)


def test_a_timeout_of_the_call_itself_is_not_taken_for_the_deadline() -> None:
    def times_out() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        Deadlines().within(5, times_out)


def test_whoever_asks_is_let_go_at_the_deadline() -> None:
    answered = threading.Event()
    with pytest.raises(Overdue, match=r"no answer within 0\.05 s"):
        Deadlines().within(0.05, answered.wait)
    answered.set()


def test_calls_that_hang_are_bounded_and_their_places_come_back() -> None:
    answered, deadlines = threading.Event(), Deadlines(at_once=2)
    for _ in range(2):
        with pytest.raises(Overdue):
            deadlines.within(0.05, answered.wait)
    with pytest.raises(Overdue, match="too many earlier calls hang"):
        deadlines.within(0.05, lambda: 42)
    answered.set()
    assert deadlines.within(5, lambda: 42) == 42


def test_a_call_that_was_begun_has_its_time_from_then_on() -> None:
    answered, deadlines = threading.Event(), Deadlines()
    call = deadlines.begin(0.05, answered.wait)
    with pytest.raises(Overdue):
        deadlines.within(0.1, answered.wait)
    assert call.ends < monotonic()
    with pytest.raises(Overdue, match=r"no answer within 0\.05 s"):
        call.result()
    answered.set()


def test_an_answer_that_came_in_time_is_given_however_late_somebody_asks() -> None:
    call = Deadlines().begin(0.0, lambda: 42)
    wait([call.outcome])
    assert call.result() == 42


def test_what_would_have_to_wait_for_a_place_is_not_begun() -> None:
    answered, deadlines = threading.Event(), Deadlines(at_once=1)
    # Longer than a test may take: one that waited would not pass late.
    deadlines.begin(3600, answered.wait)
    with pytest.raises(Overdue, match="too many earlier calls hang"):
        deadlines.begin(3600, lambda: 42)
    answered.set()
    assert deadlines.within(5, lambda: 42) == 42


def test_an_answer_that_comes_just_as_nobody_waits_any_more_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    waits, may_answer = Future[Any].result, threading.Event()

    def waits_too_short(outcome: Future[Any], timeout: float | None = None) -> Any:
        if timeout is None:
            return waits(outcome)
        may_answer.set()
        waits(outcome)
        raise TimeoutError

    def answers() -> int:
        may_answer.wait()
        return 42

    monkeypatch.setattr(Future, "result", waits_too_short)
    assert Deadlines().within(5, answers) == 42


def test_a_thread_that_cannot_be_had_costs_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    deadlines = Deadlines(at_once=1)

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        with pytest.raises(Overdue, match="can't start new thread"):
            deadlines.within(5, lambda: 42)
    assert deadlines.within(5, lambda: 42) == 42
