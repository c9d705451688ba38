"""When the node should compare anew what it holds with what it should: whatever was ordered may have been lost
meanwhile.

Every answered heartbeat is a contact. A silence of some beats is a cut, whatever the reason: no network, a control
plane that was away or turned the node away, or a process that was stopped and goes on. A beat or two that got lost
are no such thing. That one side forgot what had been said (a restored ledger, a restored disk) is seen by the
reports, and counts too.
"""

import time
from collections.abc import Callable
from typing import Final

import structlog

log = structlog.get_logger(__name__)

BEATS: Final = 2.5
"""So many intervals without an answer are a cut: at least two beats in a row were in vain."""


class Contact:
    """`heard` is called by one thread at a time; `seconds` is the interval of heartbeats, `now` a monotonic clock."""

    def __init__(self, seconds: Callable[[], float], now: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._now = seconds, now
        self._last: float | None = None
        self._listeners: list[Callable[[], None]] = []

    def on_doubt(self, listener: Callable[[], None]) -> None:
        """Tell it when the node is back after it was cut off, or when somebody forgot."""
        self._listeners.append(listener)

    def heard(self) -> None:
        """The control plane answered."""
        now, last = self._now(), self._last
        self._last = now
        if last is not None and now - last > BEATS * self._seconds():
            log.warning("was_cut_off", seconds=round(now - last, 1))
            self._doubt()

    def forgotten(self) -> None:
        """The control plane, or this node's disk, does not know of what it once knew."""
        self._doubt()

    def _doubt(self) -> None:
        for listener in self._listeners:
            listener()
