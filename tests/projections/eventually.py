"""Awaiting a condition beside other work of the same test."""

import asyncio
import time
from collections.abc import Callable


async def eventually(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> float:
    """The seconds that it took until `condition` held. Raises `AssertionError` naming `what` when it does not in
    time.
    """
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, f"waited {seconds:.0f} s in vain until {what}"
        await asyncio.sleep(0.02)
    return time.monotonic() - began
