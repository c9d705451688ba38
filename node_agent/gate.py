"""When the node takes orders from its queue, and when it leaves them there.

It takes none before it knows what time it is, since orders expire, none while its spool is full, because it could not
say what came of them (the control plane sees how full it is at each heartbeat), and none while the control plane
turns it away (design section 4: an error stops orders and keeps slices). An order that waits at the gate stays
held in the queue: nothing of it was done, so nothing is lost. One that waits long goes back and is fetched again: its
time limit counts from the fetch, and is for its work.
"""

import threading
import time
from typing import Final

import structlog

from node_agent.clock import NodeClock
from node_agent.spool import Spool
from tasks.broker import GivenBack

PATIENCE_SECONDS: Final = 15.0
"""Half of what an actor is given beyond its time limit."""
log = structlog.get_logger(__name__)


class Gate:
    """Thread-safe. Whoever waited for `patience` seconds gives his order back."""

    def __init__(self, spool: Spool, clock: NodeClock, *, patience: float = PATIENCE_SECONDS) -> None:
        self._spool, self._clock, self._patience = spool, clock, patience
        self._changed = threading.Condition()
        self._turned_away: str | None = None
        self._waits_for_room = False
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
        """Nobody passes any more: the agent ends, and whoever waits gives the order back."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    @property
    def room(self) -> bool:
        """Whether what is seen can be reported."""
        return not self._spool.full

    def pass_through(self) -> None:
        """Wait until orders may be taken. Raises `GivenBack` when that takes long, and when the agent ends."""
        until = time.monotonic() + self._patience
        with self._changed:
            while not (self._closing or self._open()):
                self._note_room()
                if (left := until - time.monotonic()) <= 0:
                    raise GivenBack
                # Neither spool nor clock tell when they are ready: they are looked at again once a second.
                self._changed.wait(min(1.0, left))
            self._note_room()
            # Even if it is open: what is taken now would only be carried out at the next start.
            if self._closing:
                raise GivenBack

    def _note_room(self) -> None:
        """Say so once when orders wait for reports to be taken, and once when they go on."""
        if self._spool.full and not self._waits_for_room:
            log.error("orders_wait_for_reports", waiting=self._spool.waiting)
        elif self._waits_for_room and not self._spool.full:
            log.info("orders_go_on", waiting=self._spool.waiting)
        self._waits_for_room = self._spool.full

    def _open(self) -> bool:
        return self._turned_away is None and self._clock.learned and self.room
