"""Asynchronous waiting for a condition, without blocking the event loop of the test."""

import asyncio
import time
from collections.abc import Callable

from tests.waiting import Pauses


async def eventually(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> float:
    """Wait until `condition` is true, and return the seconds that this took.

    Raises `AssertionError` with the description `what` if the condition is not true within `seconds`.
    """
    began, pauses = time.monotonic(), Pauses()
    while not condition():
        assert time.monotonic() - began < seconds, f"not within {seconds:.0f} s: {what}"
        await asyncio.sleep(pauses.next())
    return time.monotonic() - began
