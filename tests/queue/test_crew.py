"""Threads are there while there is work, and no longer."""

import threading
from functools import partial
from queue import SimpleQueue

import pytest

from tasks.crew import Crew
from tests.queue.node import eventually


def threads_of(name: str) -> int:
    return sum(thread.name.startswith(name) for thread in threading.enumerate())


def test_a_crew_without_work_has_no_threads() -> None:
    crew = Crew("idle", 4, idle_seconds=0.01)
    assert threads_of("idle") == 0
    done = threading.Event()
    crew.run(done.set)
    assert done.wait(10)
    eventually(lambda: threads_of("idle") == 0)


def test_work_begins_at_once_on_a_thread_that_is_idle_or_new(gate: threading.Event) -> None:
    crew, begun = Crew("busy", 8), threading.Barrier(9)
    for _ in range(8):
        crew.run(lambda: (begun.wait(10), gate.wait(10)))
    begun.wait(10)
    assert threads_of("busy") == 8


def test_an_idle_thread_is_taken_before_another_is_started() -> None:
    crew, done = Crew("one", 8, idle_seconds=30), SimpleQueue[str]()
    for _ in range(50):
        crew.run(lambda: done.put(threading.current_thread().name))
        assert done.get(timeout=10) == "one-1"
        eventually(lambda: crew._idle == 1)
    crew.close(10)


def test_work_waits_in_its_order_while_all_threads_are_busy(gate: threading.Event) -> None:
    crew, done = Crew("bounded", 1), SimpleQueue[int]()
    crew.run(lambda: gate.wait(10))
    for number in range(20):
        crew.run(partial(done.put, number))
    assert threads_of("bounded") == 1
    gate.set()
    assert [done.get(timeout=10) for _ in range(20)] == list(range(20))


def test_work_that_breaks_ends_its_thread_and_not_what_waits(
    broken: SimpleQueue[str], gate: threading.Event
) -> None:
    crew, done = Crew("breaking", 1), threading.Event()

    def breaks() -> None:
        gate.wait(10)
        raise LookupError("a mistake of ours")

    crew.run(breaks)
    crew.run(done.set)
    gate.set()
    assert done.wait(10)
    assert broken.get(timeout=10) == "LookupError('a mistake of ours')"


def test_a_closed_crew_begins_nothing_and_waits_for_what_was_begun(gate: threading.Event) -> None:
    crew, begun, never = Crew("closing", 1), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        gate.wait(10)

    crew.run(work)
    crew.run(never.set)
    assert begun.wait(10)
    assert not crew.close(0)
    gate.set()
    assert crew.close(10)
    crew.run(never.set)
    assert threads_of("closing") == 0
    assert not never.is_set()


def test_no_work_is_forgotten_when_threads_come_and_go_all_the_time() -> None:
    crew, done, total = Crew("coming", 4, idle_seconds=0.0001), SimpleQueue[int](), 4 * 500

    def give() -> None:
        for number in range(500):
            crew.run(partial(done.put, number))

    givers = [threading.Thread(target=give) for _ in range(4)]
    for giver in givers:
        giver.start()
    for _ in range(total):
        done.get(timeout=10)
    eventually(lambda: threads_of("coming") == 0)


def test_a_machine_without_threads_lets_work_wait_for_one_that_is_there(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew, done = Crew("scarce", 8), threading.Event()
    crew.run(lambda: gate.wait(10))
    with monkeypatch.context() as scarce:
        scarce.setattr(threading.Thread, "start", _no_thread)
        crew.run(done.set)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            Crew("nobody", 8).run(done.set)
    gate.set()
    assert done.wait(10)


def _no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
