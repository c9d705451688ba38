"""A thread pool that starts a thread when all its threads are busy, and ends threads that are idle for a while.

Work begins in the order of its arrival, at once while fewer than `most` threads are busy. If work raises an exception,
its thread ends through `threading.excepthook`, which may end the process. If the process continues, other threads
execute the waiting work.
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


class ThreadPool:
    """A pool of at most `most` daemon threads; each ends after `idle_seconds` without work."""

    def __init__(self, name: str, most: int, *, idle_seconds: float = IDLE_SECONDS) -> None:
        self._name, self._most, self._idle_seconds = name, most, idle_seconds
        self._changed = threading.Condition()
        self._waiting: deque[Work] = deque()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._closed = False
        self._numbers = count(1)

    def run(self, work: Work) -> None:
        """Execute `work` in a thread of the pool, at once or when a thread is free; discard it if the pool is closed.

        Raises `RuntimeError` if the operating system refuses a new thread and no other thread can do the work later.
        """
        with self._changed:
            if self._closed:
                return
            self._waiting.append(work)
            self._assign()

    def close(self, timeout: float) -> bool:
        """Close the pool: begin no more work, wait up to `timeout` seconds, and return whether all work has ended."""
        until = time.monotonic() + timeout
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()
            others = self._threads - {threading.current_thread()}
        for thread in others:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in others)

    def _assign(self) -> None:
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
            log.warning("thread_start_failed", pool=self._name, threads=len(self._threads))
        else:
            self._threads.add(thread)

    def _work(self) -> None:
        try:
            while (work := self._next()) is not None:
                work()
                # An idle thread must not keep the objects of its last work alive.
                del work
        finally:
            self._leave()

    def _next(self) -> Work | None:
        """Return the next work for a thread of the pool, or None if the thread should end."""
        with self._changed:
            if not self._waiting:
                self._idle += 1
                try:
                    self._changed.wait_for(lambda: self._waiting or self._closed, self._idle_seconds)
                finally:
                    # In `finally`, because a time limit may raise an exception here late.
                    self._idle -= 1
            return self._waiting.popleft() if self._waiting else None

    def _leave(self) -> None:
        with self._changed:
            self._threads.discard(threading.current_thread())
            # Work may be waiting: this thread failed, or the work arrived while this thread still counted as busy.
            if self._waiting:
                self._assign()
