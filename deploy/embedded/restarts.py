"""Restart policy of a supervised process: immediate after a long run; after short runs, with growing pauses.

The number of restarts is never reset. A pause is measured from the last start, so a process that ran longer than the
longest pause is restarted at once.
"""

import time
from dataclasses import dataclass
from typing import Final

FIRST_PAUSE_SECONDS: Final = 0.25
LONGEST_PAUSE_SECONDS: Final = 10.0


@dataclass
class Restarts:
    """Restarts of one process. Call `started` at each start and `counted` before each restart."""

    count: int = 0
    _last_start: float = 0.0

    def started(self) -> None:
        self._last_start = time.monotonic()

    def is_due(self) -> bool:
        """Return whether the process may be restarted: the pause after its last start is over."""
        return time.monotonic() - self._last_start >= self.pause_seconds

    def counted(self) -> None:
        """Count a restart of the process, which lengthens the pause before the next restart."""
        self.count += 1
        self.started()

    @property
    def pause_seconds(self) -> float:
        # The exponent is bounded: a process that fails for days would otherwise compute enormous powers.
        return min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(self.count, 10))
