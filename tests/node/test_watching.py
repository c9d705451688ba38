"""Sources of hints are heard by one thread, and opened again when they end: once a second, whatever they do."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from node_agent.drivers.watching import HostWatch, Listening, Source
from tests.waiting import until

AGAIN = 1.0


class Wire:
    """A source of one end of a pair of sockets; the test has the other."""

    def __init__(self) -> None:
        self.opened = list[float]()
        self.far = socket.socket()
        self.refuses = False

    def open(self) -> Listening:
        self.opened.append(time.monotonic())
        if self.refuses:
            raise ConnectionRefusedError("nobody is there")
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


def test_a_word_of_any_source_is_a_hint(watched: Callable[..., HostWatch], hints: Hints) -> None:
    one, other = Wire(), Wire()
    watched(one=one.open, other=other.open)
    until(lambda: hints.count == 2, "both are open, which is a hint each")
    one.far.send(b"changed")
    until(lambda: hints.count == 3, "it was heard")
    other.far.send(b"changed")
    until(lambda: hints.count == 4, "it was heard")


def test_one_that_ends_is_opened_again_and_both_are_hints(
    watched: Callable[..., HostWatch], hints: Hints
) -> None:
    wire = Wire()
    watched(wire=wire.open)
    until(lambda: hints.count == 1, "it is open")
    wire.far.close()
    until(lambda: len(wire.opened) == 2, "it was opened again")
    until(lambda: hints.count == 3, "its end and its opening were hints")


def test_one_that_ends_at_once_is_tried_once_a_second(watched: Callable[..., HostWatch]) -> None:
    wire = Wire()

    def ends_at_once() -> Listening:
        opened = wire.open()
        wire.far.close()
        return opened

    watched(wire=ends_at_once)
    until(lambda: len(wire.opened) == 3, "it was tried three times")
    assert wire.opened[2] - wire.opened[0] >= 2 * AGAIN


def test_one_that_is_not_there_is_tried_again_while_the_others_are_heard(
    watched: Callable[..., HostWatch], hints: Hints
) -> None:
    absent, there = Wire(), Wire()
    absent.refuses = True
    watched(absent=absent.open, there=there.open)
    until(lambda: hints.count == 1, "the other is open")
    there.far.send(b"changed")
    until(lambda: hints.count == 2, "it was heard")
    absent.refuses = False
    until(lambda: hints.count == 3, "the first is open at last")


def test_stopped_nothing_is_heard_and_nothing_stays_open(hints: Hints) -> None:
    wire = Wire()
    watching = HostWatch({"wire": wire.open}, hints)
    until(lambda: hints.count == 1, "it is open")
    watching.stop()
    assert wire.far.recv(1) == b"", "the near end is closed"
    assert "host-watch" not in {thread.name for thread in threading.enumerate()}
