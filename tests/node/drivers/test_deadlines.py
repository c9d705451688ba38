"""Tests of calls under a deadline: they return or raise before the deadline, or raise `DeadlineExceeded` at it."""

import threading
from concurrent.futures import Future, wait
from time import monotonic
from typing import Any

import pytest

from node_agent.drivers.deadlines import DeadlineExceeded, Deadlines


def test_result_of_a_call_within_its_deadline_is_returned() -> None:
    assert Deadlines().within(5, lambda: 42) == 42


def test_error_of_a_call_within_its_deadline_is_raised_unchanged() -> None:
    def fails() -> None:
        raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        Deadlines().within(5, fails)


def test_timeout_error_that_a_call_raises_before_its_deadline_is_raised_unchanged() -> None:
    def times_out() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        Deadlines().within(5, times_out)


def test_hanging_call_raises_deadline_exceeded_at_its_deadline() -> None:
    answered = threading.Event()
    with pytest.raises(DeadlineExceeded, match=r"did not return within 0\.05 s"):
        Deadlines().within(0.05, answered.wait)
    answered.set()


def test_number_of_hanging_calls_past_their_deadline_is_limited_and_decreases_when_a_call_ends() -> None:
    answered, deadlines = threading.Event(), Deadlines(max_concurrent=2)
    for _ in range(2):
        with pytest.raises(DeadlineExceeded):
            deadlines.within(0.05, answered.wait)
    with pytest.raises(DeadlineExceeded, match="too many earlier calls to host programs have not returned"):
        deadlines.within(0.05, lambda: 42)
    answered.set()
    assert deadlines.within(5, lambda: 42) == 42


def test_deadline_of_a_call_counts_from_the_begin_of_the_call_and_not_of_the_wait_for_its_result() -> None:
    answered, deadlines = threading.Event(), Deadlines()
    call = deadlines.begin(0.05, answered.wait)
    with pytest.raises(DeadlineExceeded):
        deadlines.within(0.1, answered.wait)
    assert call.ends < monotonic()
    with pytest.raises(DeadlineExceeded, match=r"did not return within 0\.05 s"):
        call.result()
    answered.set()


def test_result_that_a_call_had_before_its_deadline_is_returned_after_the_deadline() -> None:
    call = Deadlines().begin(0.0, lambda: 42)
    wait([call.outcome])
    assert call.result() == 42


def test_call_with_a_deadline_is_refused_at_once_while_the_maximum_number_of_calls_hangs() -> None:
    answered, deadlines = threading.Event(), Deadlines(max_concurrent=1)
    # Longer than a test may take: a call that waited would not pass late.
    deadlines.begin(3600, answered.wait)
    with pytest.raises(DeadlineExceeded, match="too many earlier calls to host programs have not returned"):
        deadlines.begin(3600, lambda: 42)
    answered.set()
    assert deadlines.within(5, lambda: 42) == 42


def test_result_that_a_call_returns_at_the_moment_of_its_deadline_is_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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


def test_call_for_which_no_thread_can_be_started_does_not_count_as_hanging(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deadlines = Deadlines(max_concurrent=1)

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        with pytest.raises(DeadlineExceeded, match="can't start new thread"):
            deadlines.within(5, lambda: 42)
    assert deadlines.within(5, lambda: 42) == 42
