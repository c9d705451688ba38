"""How one thread tells another to leave its work: a flag that work looks at between steps and while it waits.

A newer order for a slot halts the older one's work, and the end of the agent halts all. A step that has begun is
finished: between two steps the host is always in a state from which the same comparison goes on.
"""

import threading
import time


class Halted(Exception):
    """The work was told to stop. Nothing is reported: whoever halted it owns what follows."""


class Late(Halted):
    """The work's own time is over."""


class Halt:
    """Set once, from any thread. Work with a time limit is late from `until` on, by the monotonic clock."""

    def __init__(self, until: float | None = None) -> None:
        self._asked = threading.Event()
        self._until = until

    def ask(self) -> None:
        self._asked.set()

    @property
    def asked(self) -> bool:
        return self._asked.is_set()

    def check(self) -> None:
        """Raises `Halted` once asked, and `Late`."""
        if self._asked.is_set():
            raise Halted
        if self._until is not None and time.monotonic() >= self._until:
            raise Late

    def wait(self, seconds: float) -> None:
        """Wait, and raise `Halted` as soon as asked, and `Late`."""
        left = seconds if self._until is None else min(seconds, self._until - time.monotonic())
        self._asked.wait(max(0.0, left))
        self.check()

    def rest(self, seconds: float | None = None) -> bool:
        """Wait until asked, or for so long; whether it was asked."""
        return self._asked.wait(seconds)
