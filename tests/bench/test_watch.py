"""The watch benchmark checks the events of every watcher: a missed, duplicated or reordered event fails the round."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from bench.watch.clients import Watchers, WatcherSettings, arrivals_of

COMMITS = [(position, 1_000_000 * position) for position in (3, 4, 6)]


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def watchers(opened: ExitStack, *sent: bytes) -> Watchers:
    """Connect one watcher per element of `sent` to a local server, which sends this element to the watcher."""
    listening = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
    made = Watchers(WatcherSettings("127.0.0.1", listening.getsockname()[1], "key", len(sent)))
    for each, data in zip(made.all, sent, strict=True):
        opened.enter_context(each.socket)
        opened.enter_context(listening.accept()[0]).sendall(data)
    return made


def stream(*positions: int) -> bytes:
    """Return events with these positions as an HTTP/1.1 response with chunked transfer encoding."""
    events = b"".join(b'id: 1.%d\nevent: x\ndata: {"a":"id: 1.9"}\n\n' % position for position in positions)
    return b"HTTP/1.1 200 OK\r\n\r\na\r\n: welcome\n\n\r\n%x\r\n%s\r\n" % (len(events), events)


def test_watch_benchmark_returns_a_lag_for_each_event_at_watchers_that_received_all_events(
    opened: ExitStack,
) -> None:
    seen = arrivals_of(watchers(opened, stream(3, 4, 6), stream(1, 2, 3, 4, 6)), COMMITS)
    assert seen.faults == []
    assert len(seen.lags) == 6


@pytest.mark.parametrize("positions", [(3, 6), (3, 4, 4, 6), (4, 3, 6), (3, 4, 5, 6)])
def test_watch_benchmark_names_a_watcher_with_missed_duplicated_or_reordered_events(
    opened: ExitStack, positions: tuple[int, ...]
) -> None:
    [fault] = arrivals_of(watchers(opened, stream(3, 4, 6), stream(*positions)), COMMITS).faults
    assert fault.startswith("watcher 1 received")


def test_watch_benchmark_names_a_watcher_that_never_receives_the_last_event(opened: ExitStack) -> None:
    [fault] = arrivals_of(watchers(opened, stream(3, 4)[:-9]), COMMITS, timeout=0.1).faults
    assert fault == "watcher 0 did not receive the last event"
