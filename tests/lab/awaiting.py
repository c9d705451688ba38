"""Waiting for a condition with a deadline, instead of sleeping for a fixed time."""

import time
from collections.abc import Callable
from typing import TypeVar

from tests.waiting import Pauses

T = TypeVar("T")


def eventually(look: Callable[[], T | None], seconds: float = 10.0) -> T:
    """Call `look` repeatedly and return its first true result. Raises `AssertionError` with its last result after
    `seconds`.
    """
    deadline, pauses = time.monotonic() + seconds, Pauses()
    while not (result := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"condition still returns {result!r} after {seconds} s")
        time.sleep(pauses.next())
    return result
