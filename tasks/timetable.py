"""Periodic and woken jobs of many agents, on few threads: what a thread of its own would cost a thousand times over.

A job is a function that says when it wants to run again. One thread waits for the next moment at which any job is
due, and a crew runs those that are. A job never runs twice at once; a wake that comes while it runs is kept, and it
runs again. One that blocks holds up one thread of the crew and nobody else, until all of them are blocked; *urgent*
jobs have a crew of their own, so that what must go on while everything else hangs does.

A job that raises ends its thread by way of `threading.excepthook`, as a thread of its own would have ended, and never
runs again. Nothing here is on disk: whoever starts anew enters its jobs anew.
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

from tasks.crew import Crew

THREADS: Final = 32
"""More than the jobs of one agent, so that a lone agent's never wait for each other."""
URGENT_THREADS: Final = 8
_IDLE_SECONDS: Final = 30.0
_CLOSE_SECONDS: Final = 1.0
_NEVER: Final = math.inf


@dataclass(frozen=True, slots=True)
class Rest:
    """So many seconds without a run, however often the job is woken; then it runs at once if it was woken, and in any
    case when `at_most` seconds are over. Without that it runs when the rest is over.
    """

    seconds: float
    at_most: float = 0.0


Job = Callable[[], float | Rest | None]
"""Runs once; the seconds until it wants to run again, or None: only when woken."""


class Entry:
    """A job's place in a timetable. Thread-safe."""

    def __init__(self, timetable: "Timetable", job: Job, name: str, crew: Crew) -> None:
        self._timetable = timetable
        self.job: Job | None = job
        self.name, self.crew = name, crew
        self.due, self.rests_until = _NEVER, -_NEVER
        self.is_running = False
        self.ended = threading.Event()

    def wake(self, within: float = 0.0) -> None:
        """Run within so many seconds, at once unless told otherwise; if it runs now, then once more after that."""
        self._timetable.ask(self, within)

    def cancel(self, timeout: float) -> bool:
        """Run no more, and wait up to `timeout` seconds for a run under way; whether none is."""
        self._timetable.strike(self)
        return self.ended.wait(timeout)


class Timetable:
    """Of one process; it starts its threads when they are needed. A context that closes it at its end."""

    def __init__(self, *, threads: int = THREADS, urgent_threads: int = URGENT_THREADS) -> None:
        self._changed = threading.Condition()
        self._planned: list[tuple[float, int, Entry]] = []
        self._numbers = count()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._crew = Crew("jobs", threads, idle_seconds=_IDLE_SECONDS)
        self._urgent = Crew("urgent-jobs", urgent_threads, idle_seconds=_IDLE_SECONDS)

    def enter(self, job: Job, *, name: str, after: float | None, urgent: bool = False) -> Entry:
        """Run it in `after` seconds (None: when it is woken), and from then on as it says."""
        entry = Entry(self, job, name, self._urgent if urgent else self._crew)
        if after is not None:
            self.ask(entry, after)
        return entry

    def close(self) -> None:
        """Run nothing any more. A run under way is waited for a moment and then left behind."""
        with self._changed:
            self._closed = True
            self._planned.clear()
            self._changed.notify_all()
        for crew in (self._crew, self._urgent):
            crew.close(_CLOSE_SECONDS)

    def __enter__(self) -> "Timetable":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, entry: Entry, within: float) -> None:
        """Run the entry within so many seconds, or sooner if that was asked for."""
        with self._changed:
            at = max(time.monotonic() + within, entry.rests_until)
            if at < entry.due and entry.job is not None and not self._closed:
                entry.due = at
                if not entry.is_running:
                    self._plan(entry)

    def strike(self, entry: Entry) -> None:
        """Never run the entry again."""
        with self._changed:
            # What was planned for it stands there until its time, and must not keep its agent alive as long.
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
        entry.crew.run(lambda: self._run(entry))

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
                    # It may have run sooner, because it was woken, or have been struck out.
                    if due == entry.due and not entry.is_running and entry.job is not None:
                        self._begin(entry)
                self._changed.wait(self._planned[0][0] - now if self._planned else None)
