"""Waiting for a condition, as tests do: here, and in loops of their own where one gives back what was seen."""

import asyncio
import time
from collections.abc import Callable


def until(condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    """Return as soon as `condition` holds. Raises `AssertionError` naming `what` when it does not in time, or was only
    seen to hold later.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain until {what}"
        time.sleep(0.02)
    # A look may itself have waited, for an API that was away: late is not in time.
    assert time.monotonic() <= deadline, f"it took more than {seconds:.0f} s until {what}"


def _nothing() -> None:
    """It lasts by itself."""


def last(seconds: float, again: Callable[[], object] = _nothing) -> None:
    """A fault lasts so long, and is done `again` and again meanwhile."""
    end = time.monotonic() + seconds

    def over() -> bool:
        again()
        return time.monotonic() > end

    until(over, "the fault has lasted", seconds + 30)


async def dawdle(seconds: float) -> None:
    """Be slow: the load of a fault test is made of clients who are. Never to wait for something that should happen."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        await asyncio.sleep(left)
