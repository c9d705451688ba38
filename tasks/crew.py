"""Threads that are there while there is work: started when all others are busy, ended when idle for a while.

Work is begun in the order in which it came, at once while fewer than `most` threads are busy. A thread in which work
breaks ends with it, by way of `threading.excepthook`: who watches that decides what it means. What else was waiting
goes on in another thread.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Final

import structlog

IDLE_SECONDS: Final = 2.0
Work = Callable[[], object]

log = structlog.get_logger(__name__)


class Crew:
    """At most `most` threads, each ended when it found nothing to do for `idle_seconds`; none outlives the process."""

    def __init__(self, name: str, most: int, *, idle_seconds: float = IDLE_SECONDS) -> None:
        self._name, self._most, self._idle_seconds = name, most, idle_seconds
        self._changed = threading.Condition()
        self._waiting: deque[Work] = deque()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._closed = False
        self._numbers = count(1)

    def run(self, work: Work) -> None:
        """Have it done by one of the threads; dropped when the crew is closed.

        Raises `RuntimeError` when the machine gives no thread and there is none that could do it later.
        """
        with self._changed:
            if self._closed:
                return
            self._waiting.append(work)
            self._have_it_done()

    def close(self, timeout: float) -> bool:
        """Begin nothing more, and wait up to `timeout` seconds for what was begun; whether all of it ended."""
        until = time.monotonic() + timeout
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()
            others = self._threads - {threading.current_thread()}
        for thread in others:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in others)

    def _have_it_done(self) -> None:
        if self._idle >= len(self._waiting):
            self._changed.notify()
        elif len(self._threads) < self._most:
            self._start_another()

    def _start_another(self) -> None:
        thread = threading.Thread(target=self._work, name=f"{self._name}-{next(self._numbers)}", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            if not self._threads:
                raise
            log.warning("no_thread_to_be_had", crew=self._name, threads=len(self._threads))
        else:
            self._threads.add(thread)

    def _work(self) -> None:
        try:
            while (work := self._next()) is not None:
                work()
                # Idle, it would keep alive all that the work knew.
                del work
        finally:
            self._leave()

    def _next(self) -> Work | None:
        """None: this thread is not wanted any more."""
        with self._changed:
            if not self._waiting:
                self._idle += 1
                try:
                    self._changed.wait_for(lambda: self._waiting or self._closed, self._idle_seconds)
                finally:
                    # Also when a time limit's exception comes late.
                    self._idle -= 1
            return self._waiting.popleft() if self._waiting else None

    def _leave(self) -> None:
        with self._changed:
            self._threads.discard(threading.current_thread())
            # It broke with work behind it, or work came just now and found a thread that seemed busy.
            if self._waiting:
                self._have_it_done()
