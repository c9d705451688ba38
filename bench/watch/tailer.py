"""The baseline of the watch benchmark: one connection that reads the end of the raw table without passing events on.

It polls without a pause and ignores the order of commits: it misses an event that is committed after the connection has
read a higher position.
"""

import sys
import threading
import time
from typing import Final

import msgspec
import psycopg

from bench.ledger import raw
from bench.watch.writer import Commit

_NEXT: Final = f"select position, data from {raw.SCHEMA}.event where position > %s order by position"  # noqa: S608 (a constant)

_END: Final = f"select coalesce(max(position), 0) from {raw.SCHEMA}.event"  # noqa: S608 (a constant)


class _Tailer(threading.Thread):
    """Thread that polls the raw table for new rows until `over` is set, and records the arrival of each row."""

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
    """Read the connection string from standard input, then a line per turn with the commit time of each of its events.

    The answer to each line is the list of lags, in milliseconds from an event's commit to its arrival.
    """
    tailer = _Tailer(msgspec.json.decode(sys.stdin.readline(), type=str))
    tailer.start()
    tailer.began.wait()
    _write_answer(None)
    try:
        for line in sys.stdin:
            committed = dict(msgspec.json.decode(line, type=list[Commit]))
            _write_answer(
                [(at - committed[each]) / 1e6 for each, at in list(tailer.arrivals) if each in committed]
            )
    finally:
        tailer.over.set()
        tailer.join()


def _write_answer(answer: object) -> None:
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
