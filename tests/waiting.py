"""Waiting for a condition, the only way in which a test waits."""

import asyncio
import time
from collections.abc import Callable


def until(condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    """Return as soon as `condition` holds. Raises `AssertionError` naming `what` when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain until {what}"
        time.sleep(0.02)


async def dawdle(seconds: float) -> None:
    """Be slow: the load of a fault test is made of clients who are. Never to wait for something that should happen."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        await asyncio.sleep(left)
