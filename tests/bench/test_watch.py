"""The watch bench believes no watcher: one that missed, doubled or mixed up an event makes the round fail."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from bench.watch_clients import Watchers, Watching, seen_of

COMMITS = [(position, 1_000_000 * position) for position in (3, 4, 6)]


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def watchers(opened: ExitStack, *sent: bytes) -> Watchers:
    """One for each of these, which its API sends it."""
    listening = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
    made = Watchers(Watching("127.0.0.1", listening.getsockname()[1], "key", len(sent)))
    for each, data in zip(made.all, sent, strict=True):
        opened.enter_context(each.socket)
        opened.enter_context(listening.accept()[0]).sendall(data)
    return made


def told(*positions: int) -> bytes:
    """Events as they come over HTTP/1.1, in chunks."""
    events = b"".join(b'id: 1.%d\nevent: x\ndata: {"a":"id: 1.9"}\n\n' % position for position in positions)
    return b"HTTP/1.1 200 OK\r\n\r\na\r\n: welcome\n\n\r\n%x\r\n%s\r\n" % (len(events), events)


def test_every_watcher_that_saw_everything_has_a_lag_for_each_event(opened: ExitStack) -> None:
    seen = seen_of(watchers(opened, told(3, 4, 6), told(1, 2, 3, 4, 6)), COMMITS)
    assert seen.faults == []
    assert len(seen.lags) == 6


@pytest.mark.parametrize("positions", [(3, 6), (3, 4, 4, 6), (4, 3, 6), (3, 4, 5, 6)])
def test_a_watcher_that_saw_anything_else_is_named(opened: ExitStack, positions: tuple[int, ...]) -> None:
    [fault] = seen_of(watchers(opened, told(3, 4, 6), told(*positions)), COMMITS).faults
    assert fault.startswith("watcher 1 saw")


def test_a_watcher_that_never_saw_the_last_event_is_named(opened: ExitStack) -> None:
    [fault] = seen_of(watchers(opened, told(3, 4)[:-9]), COMMITS, patience=0.1).faults
    assert fault == "watcher 0 did not see the last event"
