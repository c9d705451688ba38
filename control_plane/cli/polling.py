"""Polling of an operation that continues independently of the client.

A control plane that is temporarily unreachable is retried for `RETRY_SECONDS`: a restart takes less, and the operation
survives it.
"""

import time
from collections.abc import Iterator
from typing import Final, TypeVar

from control_plane.cli.session import Session
from control_plane.cli.waiting import RETRY_SECONDS, deadline_of
from control_plane.client.errors import SliceplaneError, TimedOut, is_temporary
from control_plane.client.exchange import Call, Reply

T = TypeVar("T")
_POLL_SECONDS: Final = 0.3


def polled(current: Session, call: Call[T], timeout: float | None) -> Iterator[Reply[T]]:
    """Send the same call again and again, and yield each response. Raises `TimedOut` after `timeout` seconds; None: no
    limit.
    """
    lost_at: float | None = None
    deadline = deadline_of(timeout)
    while deadline is None or time.monotonic() < deadline:
        try:
            reply = current.send(call)
        except SliceplaneError as lost:
            if not is_temporary(lost):
                raise
            if lost_at is None:
                lost_at = time.monotonic()
                current.screen.note(f"connection lost, retrying: {lost.what}")
            elif time.monotonic() - lost_at > RETRY_SECONDS:
                raise
        else:
            if lost_at is not None:
                current.screen.note("reconnected")
            lost_at = None
            yield reply
        time.sleep(_POLL_SECONDS)
    raise TimedOut("the operation was not complete before the timeout of the wait")
