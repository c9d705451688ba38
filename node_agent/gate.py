"""When the node takes orders from its queue, and when it leaves them there.

It takes none while its spool is full, because it could not say what came of them, and none while the control plane
turns it away (design section 4: an error stops orders and keeps slices). An order that waits at the gate stays
held in the queue: nothing of it was done, so nothing is lost.
"""

import threading

import structlog

from node_agent.spool import Spool

log = structlog.get_logger(__name__)


class Gate:
    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._changed = threading.Condition()
        self._turned_away: str | None = None
        self._closing = False

    def turned_away(self, reason: str) -> None:
        with self._changed:
            if self._turned_away is None:
                log.error("orders_stopped", reason=reason)
            self._turned_away = reason

    def welcome(self) -> None:
        with self._changed:
            if self._turned_away is not None:
                log.info("orders_go_on")
            self._turned_away = None
            self._changed.notify_all()

    def close(self) -> None:
        """Let everybody who waits through: the agent ends, and an order taken now is carried out at its next start."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    @property
    def room(self) -> bool:
        """Whether what is seen can be reported."""
        return not self._spool.full

    def pass_through(self) -> None:
        """Wait until orders may be taken."""
        with self._changed:
            # The spool does not tell when it drains: it is looked at again once a second.
            while not (self._closing or self._open()):
                self._changed.wait(1.0)

    def _open(self) -> bool:
        return self._turned_away is None and self.room
