"""What the watch bench is held against: one connection that reads the raw table's end and hands it to nobody.

It looks again at once, without resting, and knows nothing of what is final: an event that commits late is lost to it.
"""

import sys
import threading
import time
from typing import Final

import msgspec
import psycopg

from bench import raw
from bench.watch_writer import Commit

_NEXT: Final = f"select position, data from {raw.SCHEMA}.event where position > %s order by position"  # noqa: S608 (a constant)

_END: Final = f"select coalesce(max(position), 0) from {raw.SCHEMA}.event"  # noqa: S608 (a constant)


class _Tailer(threading.Thread):
    """Looks until it is told to end."""

    def __init__(self, dsn: str) -> None:
        super().__init__()
        self._dsn = dsn
        self.began, self.over = threading.Event(), threading.Event()
        self.arrivals: list[Commit] = []

    def run(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as conn:
            [(last,)] = conn.execute(_END).fetchall()
            self.began.set()
            while not self.over.is_set():
                rows = conn.execute(_NEXT, [last], prepare=True, binary=True).fetchall()
                at = time.monotonic_ns()
                self.arrivals += [(position, at) for position, _ in rows]
                last = rows[-1][0] if rows else last


def main() -> None:
    """Reads where to connect; then, each line being one turn's commits, says what was seen of them."""
    tailer = _Tailer(msgspec.json.decode(sys.stdin.readline(), type=str))
    tailer.start()
    tailer.began.wait()
    _say(None)
    try:
        for line in sys.stdin:
            committed = dict(msgspec.json.decode(line, type=list[Commit]))
            _say([(at - committed[each]) / 1e6 for each, at in list(tailer.arrivals) if each in committed])
    finally:
        tailer.over.set()
        tailer.join()


def _say(answer: object) -> None:
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
