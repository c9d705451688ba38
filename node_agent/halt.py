"""How one thread tells another to leave its work: a flag that work looks at between steps and while it waits.

A newer order for a slot halts the older one's work, and the end of the agent halts all. A step that has begun is
finished: between two steps the host is always in a state from which the same comparison goes on.
"""

import threading


class Halted(Exception):
    """The work was told to stop. Nothing is reported: whoever halted it owns what follows."""


class Halt:
    """Set once, from any thread."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    def ask(self) -> None:
        self._asked.set()

    @property
    def asked(self) -> bool:
        return self._asked.is_set()

    def check(self) -> None:
        """Raises `Halted` once asked."""
        if self._asked.is_set():
            raise Halted

    def wait(self, seconds: float) -> None:
        """Wait, and raise `Halted` as soon as asked."""
        if self._asked.wait(seconds):
            raise Halted

    def rest(self, seconds: float | None = None) -> bool:
        """Wait until asked, or for so long; whether it was asked."""
        return self._asked.wait(seconds)
