"""Tests of host snapshots: within a snapshot, each property of the host is read once; outside of a snapshot, it is read
each time.
"""

import threading
from collections.abc import Callable
from typing import NoReturn

import pytest

from node_agent.host.slices import HostUnreadable
from node_agent.host.snapshots import host_snapshot, invalidate_reads, look, start_reading

PORTS, FLOWS, LEASES = ("switch", "ports"), ("switch", "flows"), ("dhcp", "leases")


def counting() -> Callable[[], int]:
    answers = iter(range(100))
    return lambda: next(answers)


def test_every_read_outside_a_host_snapshot_reads_the_host_again() -> None:
    read = counting()
    assert [look(PORTS, read), look(PORTS, read)] == [0, 1]


def test_repeated_read_within_a_host_snapshot_returns_the_first_result() -> None:
    read = counting()
    with host_snapshot():
        assert [look(PORTS, read), look(PORTS, read), look(FLOWS, read)] == [0, 0, 1]
    assert look(PORTS, read) == 2


def test_read_after_a_change_within_a_host_snapshot_reads_the_host_again() -> None:
    read = counting()
    with host_snapshot():
        look(PORTS, read)
        invalidate_reads()
        assert look(PORTS, read) == 1


def test_change_by_one_driver_within_a_host_snapshot_invalidates_only_the_reads_of_this_driver() -> None:
    read = counting()
    with host_snapshot():
        seen = [look(question, read) for question in (PORTS, FLOWS, LEASES)]
        invalidate_reads("switch")
        assert (seen, [look(question, read) for question in (LEASES, FLOWS, PORTS)]) == ([0, 1, 2], [2, 3, 4])


class PendingRead:
    """Read of the host that was started and is not finished. It raises `HostUnreadable` if `fails` is true. `ended` is
    true if it was cancelled.
    """

    def __init__(self, *, fails: bool = False) -> None:
        self.fails, self.ended = fails, False

    def answer(self) -> int:
        if self.fails:
            raise HostUnreadable("no answer within 5 s")
        return 7

    def end(self) -> None:
        self.ended = True


def never() -> NoReturn:
    raise AssertionError("the read was started already")


def test_host_read_that_was_started_in_advance_is_not_repeated_within_the_snapshot() -> None:
    begun = PendingRead()
    with host_snapshot():
        start_reading(PORTS, lambda: begun)
        start_reading(PORTS, never)
        assert [look(PORTS, never), look(PORTS, never)] == [7, 7]
    assert not begun.ended


def test_host_read_that_was_started_in_advance_and_not_used_is_cancelled_with_the_snapshot() -> None:
    begun = PendingRead()
    with host_snapshot():
        start_reading(PORTS, lambda: begun)
    assert begun.ended


def test_host_read_that_was_started_before_a_change_is_not_used_after_the_change() -> None:
    begun = PendingRead()
    with host_snapshot():
        start_reading(PORTS, lambda: begun)
        invalidate_reads("switch")
        assert begun.ended
        assert look(PORTS, counting()) == 0


def test_failure_of_a_host_read_that_was_started_in_advance_is_raised_at_each_use() -> None:
    with host_snapshot():
        start_reading(PORTS, lambda: PendingRead(fails=True))
        for _ in range(2):
            with pytest.raises(HostUnreadable):
                look(PORTS, never)


def test_reading_the_host_in_advance_does_not_start_while_no_host_snapshot_is_open() -> None:
    start_reading(PORTS, never)


def test_host_read_that_failed_is_not_repeated_within_a_snapshot() -> None:
    asked = list[str]()

    def hangs() -> None:
        asked.append("ports")
        raise HostUnreadable("no answer within 5 s")

    with host_snapshot():
        for _ in range(2):
            with pytest.raises(HostUnreadable):
                look(PORTS, hangs)
    assert asked == ["ports"]


def test_host_snapshot_of_one_thread_is_not_used_by_other_threads() -> None:
    read, elsewhere = counting(), list[int]()
    with host_snapshot():
        look(PORTS, read)
        thread = threading.Thread(target=lambda: elsewhere.append(look(PORTS, read)))
        thread.start()
        thread.join()
    assert elsewhere == [1]
