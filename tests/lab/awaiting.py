"""Wait for a condition with a deadline, instead of sleeping for a fixed time."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(look: Callable[[], T | None], seconds: float = 10.0) -> T:
    """Return the first true result of `look`; fail after `seconds` with its last result."""
    deadline = time.monotonic() + seconds
    while not (result := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"condition still returns {result!r} after {seconds} s")
        time.sleep(0.02)
    return result
