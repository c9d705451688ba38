"""Waiting for a condition in a test. A test that needs the observed value uses a `while` loop instead."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

_SHORTEST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 0.15
_PAUSE_PER_CHECK: Final = 2
_LONGEST_GROWN_PAUSE: Final = 0.1
_SHARE_OF_WAITING: Final = 1 / 12


class Pauses:
    """Pauses between checks of a condition, at least twice as long as the last check, so that waiting takes at most a
    third of a processor. Without pauses, checks that start programs or send requests would occupy nearly a whole
    processor.

    The pauses grow to a twelfth of the time waited so far, and at most to a tenth of a second: a long wait takes little
    processor time, and becomes longer by a few hundredths.
    """

    def __init__(self) -> None:
        self._first = self._began = time.monotonic()

    def next(self) -> float:
        """Return the seconds to pause after a check that ended now. The check began when the previous pause ended."""
        now = time.monotonic()
        grown = min(_LONGEST_GROWN_PAUSE, _SHARE_OF_WAITING * (now - self._first))
        pause = min(_LONGEST_PAUSE, max(_SHORTEST_PAUSE, _PAUSE_PER_CHECK * (now - self._began), grown))
        self._began = now + pause
        return pause


def until(condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    """Return as soon as `condition` is true. Raise `AssertionError` with the description `what` if it is not true
    within `seconds`. A check that blocks and returns true only after this time also counts as a failure.
    """
    deadline, pauses = time.monotonic() + seconds, Pauses()
    while not condition():
        assert time.monotonic() < deadline, f"condition not met within {seconds:.0f} s: {what}"
        time.sleep(pauses.next())
    # The condition itself may block, for instance on an unreachable API: a late success is a failure.
    assert time.monotonic() <= deadline, f"condition met only after more than {seconds:.0f} s: {what}"


def _nothing() -> None:
    """Do nothing. `last` calls this function by default, for a fault that lasts without further actions of the test."""


def last(seconds: float, again: Callable[[], object] = _nothing) -> None:
    """Let a fault last for `seconds`, and call `again` repeatedly meanwhile, with pauses of a hundredth of a second."""
    end = time.monotonic() + seconds
    while time.monotonic() <= end:
        again()
        time.sleep(_SHORTEST_PAUSE)


async def dawdle(seconds: float) -> None:
    """Sleep for `seconds`, to simulate a slow client. It must not be used to wait for a condition."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        await asyncio.sleep(left)
