"""A scheduler for the periodic and woken jobs of many agents, with few threads in place of one thread per job.

A job is a function that returns the time until its next run. One thread waits for the next due time of all jobs, and a
thread pool runs the jobs that are due. A job never runs twice at the same time; a wake during its run is stored, and
the job runs again. A job that blocks occupies one thread of the pool and delays no other job until all threads are
blocked; *urgent* jobs have their own pool, so that they run even while all other jobs hang.

A job that raises an exception ends its thread through `threading.excepthook` and never runs again. Nothing is stored on
disk: after a restart the program enters its jobs again.
"""

import heapq
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import Final

from node_agent.runtime.thread_pool import ThreadPool

THREADS: Final = 32
"""Number of threads for jobs. One agent has fewer jobs, so the jobs of a single agent never wait for each other."""
URGENT_THREADS: Final = 8
_IDLE_SECONDS: Final = 30.0
_CLOSE_SECONDS: Final = 1.0
_NEVER: Final = math.inf


@dataclass(frozen=True, slots=True)
class Rest:
    """Return value of a job that must not run again for `seconds`, even if it is woken.

    After that time, the job runs as soon as it is woken, or at once if it was woken meanwhile. Without a wake, it runs
    `at_most` seconds after the end of its last run. With the default `at_most`, it runs after `seconds`.
    """

    seconds: float
    at_most: float = 0.0


Job = Callable[[], float | Rest | None]
"""A function that does the job's work once. It returns the seconds until its next run, a `Rest`, or None to run again
only when it is woken."""


class Entry:
    """A job that was added to a timetable. Thread-safe."""

    def __init__(self, timetable: "Timetable", job: Job, name: str, pool: ThreadPool) -> None:
        self._timetable = timetable
        self.job: Job | None = job
        self.name, self.pool = name, pool
        self.due, self.rests_until = _NEVER, -_NEVER
        self.is_running = False
        self.ended = threading.Event()

    def wake(self, within: float = 0.0) -> None:
        """Run the job within this many seconds, by default at once; if it is running, run it once more afterwards."""
        self._timetable.schedule(self, within)

    def cancel(self, timeout: float) -> bool:
        """Prevent further runs of the job, wait up to `timeout` seconds for a current run; return whether it ended."""
        self._timetable.remove(self)
        return self.ended.wait(timeout)


class Trigger:
    """Wakes an entry of a timetable that is created later. Thread-safe.

    A call before the entry exists wakes the entry when it is connected. So parts that report changes can be created,
    and can report changes, before the part with the job exists.
    """

    def __init__(self) -> None:
        self._woken = False
        self._entry: Entry | None = None

    def wake(self) -> None:
        """Run the job of the entry at once."""
        # This sets the flag before it reads the entry, and `connect` does the opposite, so no call is lost.
        self._woken = True
        if self._entry is not None:
            self._entry.wake()

    def connect(self, entry: Entry) -> None:
        """Set the entry to wake, and wake it if `wake` was called before."""
        self._entry = entry
        if self._woken:
            entry.wake()


class Timetable:
    """Scheduler of the jobs of one process. It starts its threads when they are needed.

    As a context manager, the timetable closes itself at the end of the block.
    """

    def __init__(self, *, threads: int = THREADS, urgent_threads: int = URGENT_THREADS) -> None:
        self._changed = threading.Condition()
        self._planned: list[tuple[float, int, Entry]] = []
        self._numbers = count()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._pool = ThreadPool("jobs", threads, idle_seconds=_IDLE_SECONDS)
        self._urgent = ThreadPool("urgent-jobs", urgent_threads, idle_seconds=_IDLE_SECONDS)

    def enter(self, job: Job, *, name: str, after: float | None, urgent: bool = False) -> Entry:
        """Add a job. It first runs in `after` seconds (None: when it is woken), and then again after each delay that it
        returns.
        """
        entry = Entry(self, job, name, self._urgent if urgent else self._pool)
        if after is not None:
            self.schedule(entry, after)
        return entry

    def close(self) -> None:
        """Close the timetable: run no further jobs, wait a moment for running jobs, then abandon them."""
        with self._changed:
            self._closed = True
            self._planned.clear()
            self._changed.notify_all()
        for pool in (self._pool, self._urgent):
            pool.close(_CLOSE_SECONDS)

    def __enter__(self) -> "Timetable":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def schedule(self, entry: Entry, within: float) -> None:
        """Run the job of an entry within this many seconds, or sooner if it is already scheduled sooner."""
        with self._changed:
            at = max(time.monotonic() + within, entry.rests_until)
            if at < entry.due and entry.job is not None and not self._closed:
                entry.due = at
                if not entry.is_running:
                    self._plan(entry)

    def remove(self, entry: Entry) -> None:
        """Remove an entry from the timetable: its job never runs again."""
        with self._changed:
            # Its planned run stays in the heap until it is due; without the job it does not keep the agent alive.
            entry.job = None
            if not entry.is_running:
                entry.ended.set()

    def _plan(self, entry: Entry) -> None:
        if entry.due <= time.monotonic():
            self._begin(entry)
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._begin_what_is_due, name="timetable", daemon=True)
            self._thread.start()
        heapq.heappush(self._planned, (entry.due, next(self._numbers), entry))
        if self._planned[0][2] is entry:
            self._changed.notify()

    def _begin(self, entry: Entry) -> None:
        entry.due, entry.is_running = _NEVER, True
        entry.pool.run(lambda: self._run(entry))

    def _run(self, entry: Entry) -> None:
        threading.current_thread().name = entry.name
        again: float | Rest | None = None
        broke = True
        try:
            if (job := entry.job) is not None:
                again = job()
            broke = False
        finally:
            with self._changed:
                self._end(entry, again, broke=broke)

    def _end(self, entry: Entry, again: float | Rest | None, *, broke: bool) -> None:
        entry.is_running = False
        if broke:
            entry.job = None
        if entry.job is None:
            entry.ended.set()
            return
        now = time.monotonic()
        if isinstance(again, Rest):
            entry.rests_until = now + again.seconds
            entry.due = max(entry.rests_until, min(entry.due, now + again.at_most))
        elif again is not None:
            entry.due = min(entry.due, now + again)
        if entry.due < _NEVER and not self._closed:
            self._plan(entry)

    def _begin_what_is_due(self) -> None:
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                while self._planned and self._planned[0][0] <= now:
                    due, _, entry = heapq.heappop(self._planned)
                    # It may have run sooner because it was woken, or have been removed.
                    if due == entry.due and not entry.is_running and entry.job is not None:
                        self._begin(entry)
                self._changed.wait(self._planned[0][0] - now if self._planned else None)
