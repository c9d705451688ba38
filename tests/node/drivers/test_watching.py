"""Tests of the watch for host changes: one thread reads all its event sources, and reopens a source that ends, at most
once per second.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from node_agent.drivers.watching import HostWatch, OpenSource, Source
from tests.waiting import until

AGAIN = 1.0


class Wire:
    """Event source of a watch: it reads one end of a socket pair. The test holds the other end."""

    def __init__(self) -> None:
        self.opened = list[float]()
        self.far = socket.socket()
        self.refuses = False

    def open(self) -> OpenSource:
        self.opened.append(time.monotonic())
        if self.refuses:
            raise ConnectionRefusedError("no listener")
        self.far, near = socket.socketpair()
        return _Near(near)


class _Near:
    def __init__(self, own: socket.socket) -> None:
        own.setblocking(False)
        self._own = own

    def fileno(self) -> int:
        return self._own.fileno()

    def drain(self) -> bool:
        return bool(self._own.recv(100))

    def close(self) -> None:
        self._own.close()


class Hints:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
def hints() -> Hints:
    return Hints()


@pytest.fixture
def watched(hints: Hints) -> Iterator[Callable[..., HostWatch]]:
    with ExitStack() as ends:

        def watch(**sources: Source) -> HostWatch:
            watching = HostWatch(sources, hints)
            ends.callback(watching.stop)
            return watching

        yield watch


def test_data_from_any_watch_source_is_reported_as_a_hint_of_a_host_change(
    watched: Callable[..., HostWatch], hints: Hints
) -> None:
    one, other = Wire(), Wire()
    watched(one=one.open, other=other.open)
    until(lambda: hints.count == 2, "both sources are open, which is a hint each")
    one.far.send(b"changed")
    until(lambda: hints.count == 3, "the hint was counted")
    other.far.send(b"changed")
    until(lambda: hints.count == 4, "the hint was counted")


def test_watch_source_that_ends_is_reopened_and_its_end_and_reopening_are_hints_of_a_host_change(
    watched: Callable[..., HostWatch], hints: Hints
) -> None:
    wire = Wire()
    watched(wire=wire.open)
    until(lambda: hints.count == 1, "the source is open")
    wire.far.close()
    until(lambda: len(wire.opened) == 2, "the source was opened again")
    until(lambda: hints.count == 3, "its end and its opening were hints")


def test_watch_source_that_exits_immediately_is_reopened_once_per_second(
    watched: Callable[..., HostWatch],
) -> None:
    wire = Wire()

    def ends_at_once() -> OpenSource:
        opened = wire.open()
        wire.far.close()
        return opened

    watched(wire=ends_at_once)
    until(lambda: len(wire.opened) == 3, "the source was tried three times")
    assert wire.opened[2] - wire.opened[0] >= 2 * AGAIN


def test_watch_source_that_cannot_be_opened_is_retried_while_the_other_watch_sources_are_read(
    watched: Callable[..., HostWatch], hints: Hints
) -> None:
    absent, there = Wire(), Wire()
    absent.refuses = True
    watched(absent=absent.open, there=there.open)
    until(lambda: hints.count == 1, "the other source is open")
    there.far.send(b"changed")
    until(lambda: hints.count == 2, "the hint was counted")
    absent.refuses = False
    until(lambda: hints.count == 3, "the first source is open")


def test_stopped_watch_reads_no_watch_source_and_leaves_none_open(hints: Hints) -> None:
    wire = Wire()
    watching = HostWatch({"wire": wire.open}, hints)
    until(lambda: hints.count == 1, "the source is open")
    watching.stop()
    assert wire.far.recv(1) == b"", "the near end is closed"
    assert "host-watch" not in {thread.name for thread in threading.enumerate()}
