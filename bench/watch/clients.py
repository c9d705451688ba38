"""The reading side of the watch benchmark: many watchers over HTTP in one process, each with its own connection.

The process must use little time, because its own time would be measured too. It first reads all sockets that have data,
with the time of each read, and only then parses the ids of complete messages. After a turn it checks that each watcher
received every event once and in order.
"""

import re
import selectors
import socket
import sys
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from bench.watch.writer import Commit

TIMEOUT_SECONDS: Final = 20.0
_READ_BYTES: Final = 2**20
_ID: Final = re.compile(rb"^id: [0-9]+\.([0-9]+)$", re.MULTILINE)
_END: Final = b"\n\n"


class WatcherSettings(msgspec.Struct):
    """The API's address and key, and the number of watchers: the first line of the process's standard input."""

    host: str
    port: int
    key: str
    watchers: int


class Arrivals(msgspec.Struct):
    """Milliseconds from each event's commit to its arrival at each watcher, and error messages in `faults`."""

    lags: list[float]
    faults: list[str]


class _Watcher:
    def __init__(self, settings: WatcherSettings) -> None:
        self.socket = socket.create_connection((settings.host, settings.port), TIMEOUT_SECONDS)
        self.socket.sendall(
            f"GET /v1/events/watch HTTP/1.1\r\nHost: {settings.host}\r\n"
            f"Authorization: Bearer {settings.key}\r\nAccept: text/event-stream\r\n\r\n".encode()
        )
        self._rest = b""
        self.arrivals: list[Commit] = []

    def take(self, data: bytes, at: int) -> None:
        data = self._rest + data
        end = data.rfind(_END) + len(_END) if _END in data else 0
        self.arrivals += [(int(position), at) for position in _ID.findall(data, 0, end)]
        self._rest = data[end:]

    def arrivals_in(self, first: int, last: int) -> list[Commit] | None:
        """Return the arrivals of the events from position `first` to `last`, or None if `last` has not arrived."""
        if not self.arrivals or self.arrivals[-1][0] < last:
            return None
        seen = [arrival for arrival in self.arrivals if arrival[0] >= first]
        self.arrivals = []
        return seen


class Watchers:
    """All watchers of the API's event stream in this process, each with its own connection."""

    def __init__(self, settings: WatcherSettings) -> None:
        self._selector = selectors.DefaultSelector()
        self.all = [_Watcher(settings) for _ in range(settings.watchers)]
        for each in self.all:
            self._selector.register(each.socket, selectors.EVENT_READ, each)

    def receive_until_input(self) -> None:
        """Receive events on all connections until standard input has a line."""
        self._selector.register(sys.stdin, selectors.EVENT_READ)
        while not self.take():
            pass
        self._selector.unregister(sys.stdin)

    def take(self, timeout: float | None = None) -> bool:
        """Receive data from every watcher's connection that has data. Return whether standard input has a line."""
        has_input, came = False, []
        for key, _ in self._selector.select(timeout):
            if key.fileobj is sys.stdin:
                has_input = True
                continue
            data = key.data.socket.recv(_READ_BYTES)
            if not data:
                raise EOFError("the API closed the connection of a watcher")
            came.append((key.data, data, time.monotonic_ns()))
        for watcher, data, at in came:
            watcher.take(data, at)
        return has_input


def main() -> None:
    watchers = Watchers(msgspec.json.decode(sys.stdin.readline(), type=WatcherSettings))
    _write_answer(None)
    while True:
        watchers.receive_until_input()
        if not (line := sys.stdin.readline()):
            return
        _write_answer(arrivals_of(watchers, msgspec.json.decode(line, type=list[Commit])))


def arrivals_of(watchers: Watchers, commits: Sequence[Commit], timeout: float = TIMEOUT_SECONDS) -> Arrivals:
    """Wait until every watcher has received the event of the last commit, and return the arrivals of all events."""
    seen, deadline = Arrivals([], []), time.monotonic() + timeout
    positions, first, last = [position for position, _ in commits], commits[0][0], commits[-1][0]
    for number, watcher in enumerate(watchers.all):
        while (arrivals := watcher.arrivals_in(first, last)) is None:
            if time.monotonic() > deadline:
                seen.faults.append(f"watcher {number} did not receive the last event")
                break
            watchers.take(0.1)
        if arrivals is None:
            continue
        if [position for position, _ in arrivals] != positions:
            seen.faults.append(
                f"watcher {number} received {len(arrivals)} of {len(positions)} events, or in the wrong order"
            )
        seen.lags += [
            (at - committed) / 1e6 for (_, committed), (_, at) in zip(commits, arrivals, strict=False)
        ]
    return seen


def _write_answer(answer: object) -> None:
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
