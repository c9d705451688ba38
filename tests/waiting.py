"""Waiting for a condition in a test. A test that needs the observed value uses a `while` loop instead."""

import asyncio
import time
from collections.abc import Callable


def until(condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    """Return as soon as `condition` is true. Raise `AssertionError` with the description `what` if it is not true
    within `seconds`, or if it was first observed as true later.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"condition not met within {seconds:.0f} s: {what}"
        time.sleep(0.02)
    # The condition itself may block, for instance on an unreachable API: a late success is a failure.
    assert time.monotonic() <= deadline, f"condition met only after more than {seconds:.0f} s: {what}"


def _nothing() -> None:
    """Do nothing, for a fault that needs no repeated action."""


def last(seconds: float, again: Callable[[], object] = _nothing) -> None:
    """Let a fault last for `seconds`, and call `again` repeatedly meanwhile."""
    end = time.monotonic() + seconds

    def over() -> bool:
        again()
        return time.monotonic() > end

    until(over, "the fault has lasted for its time", seconds + 30)


async def dawdle(seconds: float) -> None:
    """Sleep for `seconds`, to simulate a slow client. It must not be used to wait for a condition."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        await asyncio.sleep(left)
