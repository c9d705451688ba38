"""Asking again and again how something stands that goes its way whether or not somebody looks.

A control plane that is away for a while is waited for: it is restarted in less time than `PATIENCE`, and what is waited
for outlives it.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from control_plane.cli.failures import Interrupted, Unreachable
from control_plane.cli.session import Session
from control_plane.cli.waiting import PATIENCE

_LOOK_SECONDS: Final = 0.3


def polled(here: Session, path: str) -> Iterator[msgspec.Raw]:
    """The answers of a path, from now on. Raises a `Failure`."""
    lost_at: float | None = None
    while True:
        try:
            raw = msgspec.Raw(here.client.get(path))
        except Unreachable as lost:
            if lost_at is None:
                lost_at = time.monotonic()
                here.screen.note(f"connection lost, trying again: {lost.what}")
            elif time.monotonic() - lost_at > PATIENCE:
                raise
        else:
            if lost_at is not None:
                here.screen.note("connected again")
            lost_at = None
            yield raw
        time.sleep(_LOOK_SECONDS)


@contextmanager
def going_on(what: str, *advice: str) -> Iterator[None]:
    """Says of a wait that ends early that only the wait ended."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"stopped watching; {what} goes on", *advice) from None
    except Unreachable as lost:
        raise Unreachable(f"{lost.what}; {what} goes on", *advice) from lost
