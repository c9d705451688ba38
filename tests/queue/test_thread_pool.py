"""Tests of the agent's thread pool: it starts threads while there is work, and ends idle threads."""

import threading
from functools import partial
from queue import SimpleQueue

import pytest

from node_agent.runtime.thread_pool import ThreadPool
from tests.queue.node import eventually


def threads_of(name: str) -> int:
    return sum(thread.name.startswith(name) for thread in threading.enumerate())


def test_thread_pool_without_work_has_no_threads() -> None:
    pool = ThreadPool("idle", 4, idle_seconds=0.01)
    assert threads_of("idle") == 0
    done = threading.Event()
    pool.run(done.set)
    assert done.wait(10)
    eventually(lambda: threads_of("idle") == 0)


def test_work_submitted_to_a_thread_pool_below_its_thread_limit_begins_immediately(
    gate: threading.Event,
) -> None:
    pool, begun = ThreadPool("busy", 8), threading.Barrier(9)
    for _ in range(8):
        pool.run(lambda: (begun.wait(10), gate.wait(10)))
    begun.wait(10)
    assert threads_of("busy") == 8


def test_idle_thread_of_a_thread_pool_is_reused_before_a_new_thread_is_started() -> None:
    pool, done = ThreadPool("one", 8, idle_seconds=30), SimpleQueue[str]()
    for _ in range(50):
        pool.run(lambda: done.put(threading.current_thread().name))
        assert done.get(timeout=10) == "one-1"
        eventually(lambda: pool._idle == 1)
    pool.close(10)


def test_work_submitted_while_all_threads_of_a_pool_are_busy_runs_later_in_submission_order(
    gate: threading.Event,
) -> None:
    pool, done = ThreadPool("bounded", 1), SimpleQueue[int]()
    pool.run(lambda: gate.wait(10))
    for number in range(20):
        pool.run(partial(done.put, number))
    assert threads_of("bounded") == 1
    gate.set()
    assert [done.get(timeout=10) for _ in range(20)] == list(range(20))


def test_exception_in_work_of_a_thread_pool_ends_its_thread_and_waiting_work_still_runs(
    thread_exceptions: SimpleQueue[str], gate: threading.Event
) -> None:
    pool, done = ThreadPool("breaking", 1), threading.Event()

    def fails() -> None:
        gate.wait(10)
        raise LookupError("simulated error")

    pool.run(fails)
    pool.run(done.set)
    gate.set()
    assert done.wait(10)
    assert thread_exceptions.get(timeout=10) == "LookupError('simulated error')"


def test_closed_thread_pool_waits_for_running_work_and_starts_no_other_work(gate: threading.Event) -> None:
    pool, begun, never = ThreadPool("closing", 1), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        gate.wait(10)

    pool.run(work)
    pool.run(never.set)
    assert begun.wait(10)
    assert not pool.close(0)
    gate.set()
    assert pool.close(10)
    pool.run(never.set)
    assert threads_of("closing") == 0
    assert not never.is_set()


def test_all_work_of_a_thread_pool_runs_while_its_threads_start_and_end_frequently() -> None:
    pool, done, total = ThreadPool("coming", 4, idle_seconds=0.0001), SimpleQueue[int](), 4 * 500

    def submit() -> None:
        for number in range(500):
            pool.run(partial(done.put, number))

    submitters = [threading.Thread(target=submit) for _ in range(4)]
    for submitter in submitters:
        submitter.start()
    for _ in range(total):
        done.get(timeout=10)
    eventually(lambda: threads_of("coming") == 0)


def test_work_waits_for_an_existing_thread_if_no_new_thread_can_be_started(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, done = ThreadPool("scarce", 8), threading.Event()
    pool.run(lambda: gate.wait(10))
    with monkeypatch.context() as scarce:
        scarce.setattr(threading.Thread, "start", _no_thread)
        pool.run(done.set)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            ThreadPool("threadless", 8).run(done.set)
    gate.set()
    assert done.wait(10)


def _no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
