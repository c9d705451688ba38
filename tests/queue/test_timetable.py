"""Jobs of many agents run when they want to, or are woken, on few threads; what blocks delays nobody else."""

import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from queue import Empty, SimpleQueue

import pytest

from tasks.timetable import Job, Rest, Timetable
from tests.queue.node import eventually

Runs = SimpleQueue[float]
A_WHILE = 0.3


@pytest.fixture
def timetable() -> Iterator[Timetable]:
    with Timetable(threads=4, urgent_threads=1) as timetable:
        yield timetable


@pytest.fixture
def narrow() -> Iterator[Timetable]:
    """Of one thread, which runs all that is due in its order."""
    with Timetable(threads=1) as timetable:
        yield timetable


@pytest.fixture
def runs() -> Runs:
    return SimpleQueue()


def noting(runs: Runs, again: float | Rest | None) -> Job:
    """A job that says when it ran."""

    def job() -> float | Rest | None:
        runs.put(time.monotonic())
        return again

    return job


def test_a_job_runs_again_when_it_says(timetable: Timetable, runs: Runs) -> None:
    began = time.monotonic()
    timetable.enter(noting(runs, 0.05), name="job", after=0.1)
    times = [began, *(runs.get(timeout=10) for _ in range(4))]
    pauses = [later - sooner for sooner, later in pairwise(times)]
    assert pauses[0] >= 0.1
    assert all(pause >= 0.05 for pause in pauses[1:])


def test_a_job_that_names_no_time_runs_only_when_it_is_woken(narrow: Timetable, runs: Runs) -> None:
    entry = narrow.enter(noting(runs, None), name="job", after=None)
    for count in range(3):
        all_due_ran(narrow)
        assert runs.qsize() == count
        entry.wake()


def test_a_wake_brings_the_next_run_forward(timetable: Timetable, runs: Runs) -> None:
    entry = timetable.enter(noting(runs, 3600), name="job", after=3600)
    entry.wake(within=1800)
    entry.wake()
    runs.get(timeout=10)
    entry.wake(within=0.05)
    entry.wake(within=1800)
    runs.get(timeout=10)


def test_a_wake_during_a_run_is_kept_and_many_are_one(
    narrow: Timetable, runs: Runs, gate: threading.Event
) -> None:
    def job() -> None:
        runs.put(time.monotonic())
        gate.wait(10)

    entry = narrow.enter(job, name="job", after=0)
    runs.get(timeout=10)
    for _ in range(100):
        entry.wake()
    gate.set()
    runs.get(timeout=10)
    all_due_ran(narrow)
    assert runs.empty()


def test_no_wake_is_lost_between_two_runs(timetable: Timetable) -> None:
    given, taken = SimpleQueue[int](), SimpleQueue[int]()

    def job() -> None:
        while True:
            try:
                taken.put(given.get_nowait())
            except Empty:
                return

    entry = timetable.enter(job, name="job", after=None)
    for number in range(5000):
        given.put(number)
        entry.wake()
    assert [taken.get(timeout=10) for _ in range(5000)] == list(range(5000))


def test_a_job_that_rests_is_not_woken_before_its_time(timetable: Timetable, runs: Runs) -> None:
    entry = timetable.enter(noting(runs, Rest(A_WHILE)), name="job", after=0)
    first = runs.get(timeout=10)
    entry.wake()
    assert runs.get(timeout=10) - first >= A_WHILE


def test_a_job_that_rests_for_a_while_at_most_runs_at_once_then_if_it_was_woken_meanwhile(
    timetable: Timetable, runs: Runs
) -> None:
    entry = timetable.enter(noting(runs, Rest(A_WHILE, at_most=3600)), name="job", after=0)
    first = runs.get(timeout=10)
    entry.wake()
    assert runs.get(timeout=10) - first >= A_WHILE


def test_a_job_that_rests_for_a_while_at_most_runs_by_itself_when_that_is_over(
    timetable: Timetable, runs: Runs
) -> None:
    timetable.enter(noting(runs, Rest(0.01, at_most=A_WHILE)), name="job", after=0)
    times = [runs.get(timeout=10) for _ in range(3)]
    assert all(later - sooner >= A_WHILE for sooner, later in pairwise(times))


def test_a_job_never_runs_twice_at_once(timetable: Timetable) -> None:
    at_work, most, done = 0, 0, SimpleQueue[int]()

    def job() -> float:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        time.sleep(0)
        at_work -= 1
        done.put(1)
        return 0.0

    entry = timetable.enter(job, name="job", after=0)
    for _ in range(2000):
        entry.wake()
        done.get(timeout=10)
    entry.cancel(10)
    assert most == 1


def test_a_job_that_blocks_delays_no_other(timetable: Timetable, runs: Runs, gate: threading.Event) -> None:
    for _ in range(3):
        timetable.enter(lambda: gate.wait(10) and None, name="blocked", after=0)
    timetable.enter(noting(runs, 0.01), name="job", after=0)
    for _ in range(10):
        runs.get(timeout=10)


def test_an_urgent_job_runs_while_all_others_block(
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
    timetable.enter(noting(runs, 0.01), name="urgent", after=0, urgent=True)
    for _ in range(10):
        runs.get(timeout=10)


def test_a_cancelled_job_runs_no_more(narrow: Timetable, runs: Runs) -> None:
    entry = narrow.enter(noting(runs, 0), name="job", after=0)
    runs.get(timeout=10)
    assert entry.cancel(10)
    ran = runs.qsize()
    entry.wake()
    all_due_ran(narrow)
    assert runs.qsize() == ran


def test_a_cancel_waits_for_a_run_under_way_and_not_for_ever(
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


def test_a_job_that_breaks_is_told_like_a_thread_and_runs_no_more(
    timetable: Timetable, runs: Runs, broken: SimpleQueue[str]
) -> None:
    def breaks() -> None:
        raise LookupError("a mistake of ours")

    entry = timetable.enter(breaks, name="job", after=0)
    assert broken.get(timeout=10) == "LookupError('a mistake of ours')"
    entry.wake()
    timetable.enter(noting(runs, None), name="other", after=0)
    runs.get(timeout=10)
    assert entry.cancel(10)
    assert broken.empty()


def test_a_thousand_idle_jobs_share_few_threads(timetable: Timetable) -> None:
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


def test_a_closed_timetable_runs_nothing_and_has_no_threads(runs: Runs) -> None:
    before = set(threading.enumerate())
    with Timetable() as timetable:
        entry = timetable.enter(noting(runs, 0.001), name="closing-job", after=0)
        later = timetable.enter(noting(runs, None), name="closing-job", after=3600)
        runs.get(timeout=10)
    entry.wake()
    later.wake()
    timetable.enter(noting(runs, None), name="closing-job", after=0)
    eventually(lambda: set(threading.enumerate()) <= before)
    assert later.cancel(0)


def all_due_ran(narrow: Timetable) -> None:
    """Return when everything ran that was due before."""
    ran = threading.Event()
    narrow.enter(ran.set, name="last", after=0)
    assert ran.wait(10)
