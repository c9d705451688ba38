"""Tests of the timetable that runs jobs of many agents on few threads, at their times or when they are woken. A
blocking job delays no other job.
"""

import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from queue import Empty, SimpleQueue

import pytest

from node_agent.runtime.timetable import Job, Rest, Timetable, Trigger
from tests.queue.node import eventually

Runs = SimpleQueue[float]
REST_SECONDS = 0.3


@pytest.fixture
def timetable() -> Iterator[Timetable]:
    with Timetable(threads=4, urgent_threads=1) as timetable:
        yield timetable


@pytest.fixture
def one_thread_timetable() -> Iterator[Timetable]:
    """Timetable of jobs with one thread, which runs due jobs in the order of their times."""
    with Timetable(threads=1) as timetable:
        yield timetable


@pytest.fixture
def runs() -> Runs:
    return SimpleQueue()


def recording(runs: Runs, again: float | Rest | None) -> Job:
    """Return a job that records the times of its runs in `runs`. Each run returns `again`, the pause until the next."""

    def job() -> float | Rest | None:
        runs.put(time.monotonic())
        return again

    return job


def test_timetable_job_runs_again_after_the_seconds_that_it_returns(timetable: Timetable, runs: Runs) -> None:
    began = time.monotonic()
    timetable.enter(recording(runs, 0.05), name="job", after=0.1)
    times = [began, *(runs.get(timeout=10) for _ in range(4))]
    pauses = [later - sooner for sooner, later in pairwise(times)]
    assert pauses[0] >= 0.1
    assert all(pause >= 0.05 for pause in pauses[1:])


def test_trigger_that_was_woken_before_its_entry_existed_runs_the_job_when_it_is_connected(
    timetable: Timetable, runs: Runs
) -> None:
    trigger = Trigger()
    trigger.wake()
    trigger.connect(timetable.enter(recording(runs, None), name="job", after=None))
    runs.get(timeout=10)
    trigger.wake()
    runs.get(timeout=10)


def test_timetable_job_that_returns_none_runs_again_only_when_woken(
    one_thread_timetable: Timetable, runs: Runs
) -> None:
    entry = one_thread_timetable.enter(recording(runs, None), name="job", after=None)
    for count in range(3):
        all_due_ran(one_thread_timetable)
        assert runs.qsize() == count
        entry.wake()


def test_wake_moves_the_next_run_of_a_timetable_job_to_an_earlier_and_never_to_a_later_time(
    timetable: Timetable, runs: Runs
) -> None:
    entry = timetable.enter(recording(runs, 3600), name="job", after=3600)
    entry.wake(within=1800)
    entry.wake()
    runs.get(timeout=10)
    entry.wake(within=0.05)
    entry.wake(within=1800)
    runs.get(timeout=10)


def test_wakes_during_a_run_of_a_timetable_job_cause_one_further_run(
    one_thread_timetable: Timetable, runs: Runs, gate: threading.Event
) -> None:
    def job() -> None:
        runs.put(time.monotonic())
        gate.wait(10)

    entry = one_thread_timetable.enter(job, name="job", after=0)
    runs.get(timeout=10)
    for _ in range(100):
        entry.wake()
    gate.set()
    runs.get(timeout=10)
    all_due_ran(one_thread_timetable)
    assert runs.empty()


def test_wake_between_two_runs_of_a_timetable_job_is_never_lost(timetable: Timetable) -> None:
    submitted, processed = SimpleQueue[int](), SimpleQueue[int]()

    def job() -> None:
        while True:
            try:
                processed.put(submitted.get_nowait())
            except Empty:
                return

    entry = timetable.enter(job, name="job", after=None)
    for number in range(5000):
        submitted.put(number)
        entry.wake()
    assert [processed.get(timeout=10) for _ in range(5000)] == list(range(5000))


def test_timetable_job_woken_during_its_minimum_pause_runs_after_this_pause(
    timetable: Timetable, runs: Runs
) -> None:
    entry = timetable.enter(recording(runs, Rest(REST_SECONDS)), name="job", after=0)
    first = runs.get(timeout=10)
    entry.wake()
    assert runs.get(timeout=10) - first >= REST_SECONDS


def test_timetable_job_with_a_maximum_pause_that_was_woken_runs_after_its_minimum_pause(
    timetable: Timetable, runs: Runs
) -> None:
    entry = timetable.enter(recording(runs, Rest(REST_SECONDS, at_most=3600)), name="job", after=0)
    first = runs.get(timeout=10)
    entry.wake()
    assert runs.get(timeout=10) - first >= REST_SECONDS


def test_timetable_job_with_a_maximum_pause_that_was_not_woken_runs_after_its_maximum_pause(
    timetable: Timetable, runs: Runs
) -> None:
    timetable.enter(recording(runs, Rest(0.01, at_most=REST_SECONDS)), name="job", after=0)
    times = [runs.get(timeout=10) for _ in range(3)]
    assert all(later - sooner >= REST_SECONDS for sooner, later in pairwise(times))


def test_timetable_job_woken_repeatedly_never_runs_twice_concurrently(timetable: Timetable) -> None:
    running, most, done = 0, 0, SimpleQueue[int]()

    def job() -> float:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0)
        running -= 1
        done.put(1)
        return 0.0

    entry = timetable.enter(job, name="job", after=0)
    for _ in range(2000):
        entry.wake()
        done.get(timeout=10)
    entry.cancel(10)
    assert most == 1


def test_blocking_timetable_jobs_do_not_delay_another_job(
    timetable: Timetable, runs: Runs, gate: threading.Event
) -> None:
    for _ in range(3):
        timetable.enter(lambda: gate.wait(10) and None, name="blocked", after=0)
    timetable.enter(recording(runs, 0.01), name="job", after=0)
    for _ in range(10):
        runs.get(timeout=10)


def test_urgent_timetable_job_runs_while_all_normal_threads_are_blocked(
    timetable: Timetable, runs: Runs, gate: threading.Event
) -> None:
    begun = threading.Semaphore(0)

    def blocks() -> None:
        begun.release()
        gate.wait(10)

    for _ in range(10):
        timetable.enter(blocks, name="blocked", after=0)
    for _ in range(4):
        assert begun.acquire(timeout=10)
    timetable.enter(recording(runs, 0.01), name="urgent", after=0, urgent=True)
    for _ in range(10):
        runs.get(timeout=10)


def test_cancelled_timetable_job_does_not_run_again(one_thread_timetable: Timetable, runs: Runs) -> None:
    entry = one_thread_timetable.enter(recording(runs, 0), name="job", after=0)
    runs.get(timeout=10)
    assert entry.cancel(10)
    ran = runs.qsize()
    entry.wake()
    all_due_ran(one_thread_timetable)
    assert runs.qsize() == ran


def test_cancel_of_a_running_timetable_job_waits_for_its_end_up_to_a_timeout(
    timetable: Timetable, gate: threading.Event
) -> None:
    begun, ended = threading.Event(), threading.Event()

    def job() -> None:
        begun.set()
        gate.wait(10)
        ended.set()

    entry = timetable.enter(job, name="job", after=0)
    assert begun.wait(10)
    assert not entry.cancel(0.05)
    gate.set()
    assert entry.cancel(10)
    assert ended.is_set()


def test_timetable_job_that_raises_is_reported_to_the_thread_excepthook_and_does_not_run_again(
    timetable: Timetable, runs: Runs, thread_exceptions: SimpleQueue[str]
) -> None:
    def fails() -> None:
        raise LookupError("simulated error")

    entry = timetable.enter(fails, name="job", after=0)
    assert thread_exceptions.get(timeout=10) == "LookupError('simulated error')"
    entry.wake()
    timetable.enter(recording(runs, None), name="other", after=0)
    runs.get(timeout=10)
    assert entry.cancel(10)
    assert thread_exceptions.empty()


def test_thousand_periodic_timetable_jobs_share_at_most_five_threads(timetable: Timetable) -> None:
    ran = threading.Semaphore(0)
    before = threading.active_count()

    def job() -> float:
        ran.release()
        return 0.05

    for _ in range(1000):
        timetable.enter(job, name="job-of-many", after=0.05)
    for _ in range(3000):
        assert ran.acquire(timeout=10)
    assert threading.active_count() - before <= 5


def test_closed_timetable_runs_no_job_and_has_no_threads(runs: Runs) -> None:
    before = set(threading.enumerate())
    with Timetable() as timetable:
        entry = timetable.enter(recording(runs, 0.001), name="closing-job", after=0)
        later = timetable.enter(recording(runs, None), name="closing-job", after=3600)
        runs.get(timeout=10)
    entry.wake()
    later.wake()
    timetable.enter(recording(runs, None), name="closing-job", after=0)
    eventually(lambda: set(threading.enumerate()) <= before)
    assert later.cancel(0)


def all_due_ran(one_thread_timetable: Timetable) -> None:
    """Wait until the timetable has run every job that was already due."""
    ran = threading.Event()
    one_thread_timetable.enter(ran.set, name="last", after=0)
    assert ran.wait(10)
