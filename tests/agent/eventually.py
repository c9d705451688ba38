"""Waiting for a condition, never for a time."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable


def eventually(
    true: Callable[[], object],
    within: float = 10.0,
    why: Callable[[], str] = lambda: "it did not become true",
) -> None:
    """Return as soon as `true()` is; fail after `within` seconds."""
    deadline = time.monotonic() + within
    while not true():
        assert time.monotonic() < deadline, why()
        threading.Event().wait(0.01)


async def eventually_async(
    true: Callable[[], bool | Awaitable[bool]],
    within: float = 10.0,
    why: Callable[[], str] = lambda: "it did not become true",
) -> None:
    """The same on an event loop."""
    deadline = time.monotonic() + within
    while True:
        answer = true()
        if answer if isinstance(answer, bool) else await answer:
            return
        assert time.monotonic() < deadline, why()
        await asyncio.sleep(0.01)
