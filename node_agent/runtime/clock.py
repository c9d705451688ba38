"""The node's clock: the control plane's time, advanced by the host's monotonic clock.

The host's own clock is used only until the control plane's first answer: it may be off by an hour, and may jump.
"""

import threading
import time
from datetime import UTC, datetime, timedelta


class NodeClock:
    """Estimate of the control plane's time. Thread-safe.

    The heartbeat sets this clock, and reports get their timestamps from it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._base, self._at = datetime.now(UTC), time.monotonic()
        self.is_synchronized = False
        """Whether the control plane's time is available. Until then, the expiry of a task cannot be checked."""

    def now(self) -> datetime:
        """Return the current time of the control plane, in UTC."""
        with self._lock:
            return self._base + timedelta(seconds=time.monotonic() - self._at)

    def synchronize(self, answer: datetime, *, asked: float, answered: float) -> None:
        """Set the clock to the control plane's time `answer`.

        `asked` and `answered` are the monotonic times, in seconds, at which the request was sent and its response
        received. The answer is assumed to be from the middle of that time, so that the error is at most half a round
        trip (Cristian, 1989).
        """
        with self._lock:
            self._base, self._at = answer.astimezone(UTC), (asked + answered) / 2
            self.is_synchronized = True
