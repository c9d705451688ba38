"""Conditions awaited, never slept for."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(look: Callable[[], T | None], seconds: float = 10.0) -> T:
    """What `look` gives once it gives something true; fails with the last look at the deadline."""
    deadline = time.monotonic() + seconds
    while not (seen := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"still {seen!r} after {seconds} s")
        time.sleep(0.02)
    return seen
