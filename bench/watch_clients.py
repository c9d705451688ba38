"""The reading side of the watch bench: many watchers over HTTP, each on a connection of its own, in one process.

It must cost little, or it is what is measured: bytes are taken from all sockets that have some, with the moment of
each, and only then are the ids of complete messages looked for in them. What came is checked once it is all there:
each watcher must have been sent every event, in order, once.
"""

import re
import selectors
import socket
import sys
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from bench.watch_writer import Commit

PATIENCE: Final = 20.0
_MOST: Final = 2**20
_ID: Final = re.compile(rb"^id: [0-9]+\.([0-9]+)$", re.MULTILINE)
_END: Final = b"\n\n"


class Watching(msgspec.Struct):
    """Whom to watch, and how often: the first line that the process gets."""

    host: str
    port: int
    key: str
    watchers: int


class Seen(msgspec.Struct):
    """Milliseconds from each commit to each watcher's having its bytes; or what was wrong."""

    lags: list[float]
    faults: list[str]


class _Watcher:
    def __init__(self, watching: Watching) -> None:
        self.socket = socket.create_connection((watching.host, watching.port), PATIENCE)
        self.socket.sendall(
            f"GET /v1/events/watch HTTP/1.1\r\nHost: {watching.host}\r\n"
            f"Authorization: Bearer {watching.key}\r\nAccept: text/event-stream\r\n\r\n".encode()
        )
        self._rest = b""
        self.arrivals: list[Commit] = []

    def take(self, data: bytes, at: int) -> None:
        data = self._rest + data
        end = data.rfind(_END) + len(_END) if _END in data else 0
        self.arrivals += [(int(position), at) for position in _ID.findall(data, 0, end)]
        self._rest = data[end:]

    def seen_since(self, first: int, last: int) -> list[Commit] | None:
        """What arrived from one position to another, once the last of it has."""
        if not self.arrivals or self.arrivals[-1][0] < last:
            return None
        seen = [arrival for arrival in self.arrivals if arrival[0] >= first]
        self.arrivals = []
        return seen


class Watchers:
    """All of them, each on its own connection."""

    def __init__(self, watching: Watching) -> None:
        self._selector = selectors.DefaultSelector()
        self.all = [_Watcher(watching) for _ in range(watching.watchers)]
        for each in self.all:
            self._selector.register(each.socket, selectors.EVENT_READ, each)

    def until_asked(self) -> None:
        """Take what comes until there is something to read on standard input."""
        self._selector.register(sys.stdin, selectors.EVENT_READ)
        while not self.take():
            pass
        self._selector.unregister(sys.stdin)

    def take(self, patience: float | None = None) -> bool:
        """Take what came on every connection; true when standard input has something, too."""
        asked, came = False, []
        for key, _ in self._selector.select(patience):
            if key.fileobj is sys.stdin:
                asked = True
                continue
            data = key.data.socket.recv(_MOST)
            if not data:
                raise EOFError("a watch ended")
            came.append((key.data, data, time.monotonic_ns()))
        for watcher, data, at in came:
            watcher.take(data, at)
        return asked


def main() -> None:
    watchers = Watchers(msgspec.json.decode(sys.stdin.readline(), type=Watching))
    _say(None)
    while True:
        watchers.until_asked()
        if not (line := sys.stdin.readline()):
            return
        _say(seen_of(watchers, msgspec.json.decode(line, type=list[Commit])))


def seen_of(watchers: Watchers, commits: Sequence[Commit], patience: float = PATIENCE) -> Seen:
    """What every watcher saw of these commits, once it has seen the last of them."""
    seen, deadline = Seen([], []), time.monotonic() + patience
    positions, first, last = [position for position, _ in commits], commits[0][0], commits[-1][0]
    for number, watcher in enumerate(watchers.all):
        while (arrivals := watcher.seen_since(first, last)) is None:
            if time.monotonic() > deadline:
                seen.faults.append(f"watcher {number} did not see the last event")
                break
            watchers.take(0.1)
        if arrivals is None:
            continue
        if [position for position, _ in arrivals] != positions:
            seen.faults.append(
                f"watcher {number} saw {len(arrivals)} events of {len(positions)}, or not in order"
            )
        seen.lags += [
            (at - committed) / 1e6 for (_, committed), (_, at) in zip(commits, arrivals, strict=False)
        ]
    return seen


def _say(answer: object) -> None:
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
