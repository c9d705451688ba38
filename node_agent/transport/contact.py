"""Detection of moments when the node must compare its orders with the desired state again, because orders may be lost.

Every answered heartbeat is a contact. Several intervals without a contact are an interruption, whatever the reason: no
network, a control plane that was down or rejected the node, or a process that was suspended and resumed. One lost
heartbeat is not an interruption. If the control plane or the node lost recorded state (a restored ledger, a restored
disk), the delivery of reports detects the loss, which leads to a comparison too.
"""

import time
from collections.abc import Callable
from typing import Final

import structlog

log = structlog.get_logger(__name__)

BEATS: Final = 2.5
"""Number of heartbeat intervals without an answer after which contact counts as interrupted. By then, at least two
heartbeats in a row have failed."""


class Contact:
    """Contact of the node with the control plane.

    `record_answer` must be called by one thread at a time. `seconds` returns the interval between heartbeats; `now`
    is a monotonic clock in seconds.
    """

    def __init__(self, seconds: Callable[[], float], now: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._now = seconds, now
        self._last: float | None = None
        self._listeners: list[Callable[[], None]] = []

    def on_comparison_due(self, listener: Callable[[], None]) -> None:
        """Call `listener` when contact with the control plane resumes, and when the control plane or the node lost
        recorded state.
        """
        self._listeners.append(listener)

    def record_answer(self) -> None:
        """Record that the control plane answered a heartbeat."""
        now, last = self._now(), self._last
        self._last = now
        if last is not None and now - last > BEATS * self._seconds():
            log.warning("control_plane_contact_resumed", interruption_seconds=round(now - last, 1))
            self._notify()

    def record_lost_state(self) -> None:
        """Record that the control plane, or this node's disk, lost data that it had stored."""
        self._notify()

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()
