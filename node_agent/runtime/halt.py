"""Cooperative cancellation of work in another thread: a flag that the work checks between steps and while it waits.

A newer order for a slot halts the work of the older one, and the agent's stop halts all work. A step that has begun is
finished: between two steps the host is always in a state from which the next comparison can continue.
"""

import threading
import time


class Halted(Exception):
    """Work was halted by another thread. The halted work reports nothing: the other thread continues the work, or makes
    the report in its place.
    """


class TimeLimitReached(Halted):
    """Work was interrupted because it exceeded its own time limit."""


class Halt:
    """Flag that requests work in another thread to halt. Thread-safe; once set, it stays set.

    `until` is the time limit of the work on the monotonic clock, in seconds; None: no limit.
    """

    def __init__(self, until: float | None = None) -> None:
        self._requested = threading.Event()
        self._until = until

    def request(self) -> None:
        """Set the halt flag: request the work to halt at its next check."""
        self._requested.set()

    @property
    def is_requested(self) -> bool:
        """Whether the halt flag is set."""
        return self._requested.is_set()

    def check(self) -> None:
        """Raise `Halted` if a halt was requested, and `TimeLimitReached` if the time limit has passed."""
        if self._requested.is_set():
            raise Halted
        if self._until is not None and time.monotonic() >= self._until:
            raise TimeLimitReached

    def wait(self, seconds: float) -> None:
        """Wait for `seconds`. Raises `Halted` when a halt is requested, and `TimeLimitReached` at the time limit."""
        remaining = seconds if self._until is None else min(seconds, self._until - time.monotonic())
        self._requested.wait(max(0.0, remaining))
        self.check()

    def wait_for_request(self, seconds: float | None = None) -> bool:
        """Wait until a halt is requested, at most for `seconds`; return whether it is requested."""
        return self._requested.wait(seconds)
