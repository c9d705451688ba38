"""Polling of an operation that continues independently of the client.

A control plane that is temporarily unreachable is retried for `RETRY_SECONDS`: a restart takes less, and the operation
survives it.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from control_plane.cli.failures import Interrupted, Unreachable
from control_plane.cli.session import Session
from control_plane.cli.waiting import RETRY_SECONDS

_POLL_SECONDS: Final = 0.3


def polled(current: Session, path: str) -> Iterator[msgspec.Raw]:
    """Send a GET request to an API path repeatedly, and yield each response. Raises a `Failure`."""
    lost_at: float | None = None
    while True:
        try:
            raw = msgspec.Raw(current.client.get(path))
        except Unreachable as lost:
            if lost_at is None:
                lost_at = time.monotonic()
                current.screen.note(f"connection lost, retrying: {lost.what}")
            elif time.monotonic() - lost_at > RETRY_SECONDS:
                raise
        else:
            if lost_at is not None:
                current.screen.note("reconnected")
            lost_at = None
            yield raw
        time.sleep(_POLL_SECONDS)


@contextmanager
def continuing(what: str, *advice: str) -> Iterator[None]:
    """If the user or an outage ends the `with` block, report that the operation `what` continues."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"stopped watching; {what} continues", *advice) from None
    except Unreachable as lost:
        raise Unreachable(f"{lost.what}; {what} continues", *advice) from lost
