"""Wait for a condition with a deadline, instead of sleeping for a fixed time."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

from tests.waiting import Pauses


def eventually(
    true: Callable[[], object],
    within: float = 10.0,
    reason: Callable[[], str] = lambda: "the condition did not become true in time",
) -> None:
    """Return once `true()` returns a true value; fail after `within` seconds with the message `reason()`."""
    deadline, pauses = time.monotonic() + within, Pauses()
    while not true():
        assert time.monotonic() < deadline, reason()
        threading.Event().wait(pauses.next())


async def eventually_async(
    true: Callable[[], bool | Awaitable[bool]],
    within: float = 10.0,
    reason: Callable[[], str] = lambda: "the condition did not become true in time",
) -> None:
    """Wait like `eventually`, without blocking the event loop; `true` may be a coroutine function."""
    deadline, pauses = time.monotonic() + within, Pauses()
    while True:
        answer = true()
        if answer if isinstance(answer, bool) else await answer:
            return
        assert time.monotonic() < deadline, reason()
        await asyncio.sleep(pauses.next())
