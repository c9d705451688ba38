"""Time on a node is the control plane's, carried on by the monotonic clock (design section 4).

The host's own clock is believed only until the first answer: it may be off by an hour, and step.
"""

import threading
import time
from datetime import UTC, datetime, timedelta


class NodeClock:
    """Thread-safe. `learn` is called by the heartbeat, `now` by whoever stamps a report."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._base, self._at = datetime.now(UTC), time.monotonic()
        self.learned = False
        """Whether it was ever told: before that, nothing may be judged to have expired, or not."""

    def now(self) -> datetime:
        with self._lock:
            return self._base + timedelta(seconds=time.monotonic() - self._at)

    def learn(self, answer: datetime, *, asked: float, answered: float) -> None:
        """Take the control plane's time. `asked` and `answered` are monotonic seconds around the question:
        the answer is taken to be from their middle, so it is wrong by half a round trip at most (Cristian, 1989).
        """
        with self._lock:
            self._base, self._at = answer.astimezone(UTC), (asked + answered) / 2
            self.learned = True
