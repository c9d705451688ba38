"""Gate in front of the node's tasks: it blocks tasks from the queue while the node must not execute them.

The gate is closed in three cases:

- The node does not have the control plane's time yet, so it cannot check whether a task has expired.
- The node's spool of reports is full, so the outcome of a task could not be reported. Each heartbeat reports the number
  of spooled reports.
- The control plane rejects the node. This stops only the execution of tasks: running slices continue.

A task that waits at the gate remains unacknowledged in the queue: no part of the task was executed, so nothing is lost.
A task that waits long is requeued and fetched again, so that the wait does not use up the time limit of the task.
"""

import threading
import time
from typing import Final

import structlog

from node_agent.runtime.clock import NodeClock
from node_agent.transport.broker import RequeueOrder
from node_agent.transport.spool import Spool

TIMEOUT_SECONDS: Final = 15.0
"""Time in seconds that a task may wait at the gate: half of the grace period that actors have after the time limit of a
task.
"""
log = structlog.get_logger(__name__)


class Gate:
    """Gate that blocks tasks while the node must not execute them. Thread-safe.

    A task that waits at the gate longer than the timeout (in seconds) is requeued.
    """

    def __init__(self, spool: Spool, clock: NodeClock, *, timeout: float = TIMEOUT_SECONDS) -> None:
        self._spool, self._clock, self._timeout = spool, clock, timeout
        self._changed = threading.Condition()
        self._rejection: str | None = None
        self._is_blocked = False
        self._closing = False

    def stop_orders(self, reason: str) -> None:
        """Close the gate for tasks because the control plane rejects this node. `reason` is the reason of the control
        plane.
        """
        with self._changed:
            if self._rejection is None:
                log.error("orders_stopped_because_control_plane_rejects_node", reason=reason)
            self._rejection = reason

    def resume_orders(self) -> None:
        """Open the gate for tasks again because the control plane accepts this node."""
        with self._changed:
            if self._rejection is not None:
                log.info("orders_resumed_because_control_plane_accepts_node")
            self._rejection = None
            self._changed.notify_all()

    def close(self) -> None:
        """Close the gate for tasks permanently because the agent stops. Tasks that wait at the gate are requeued."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    @property
    def room(self) -> bool:
        """Whether the node's spool has room for further reports."""
        return not self._spool.full

    def wait_until_open(self) -> None:
        """Wait until tasks may be executed. Raises `RequeueOrder` after the timeout, and when the agent stops."""
        until = time.monotonic() + self._timeout
        with self._changed:
            while not (self._closing or self._open()):
                self._log_room()
                if (remaining := until - time.monotonic()) <= 0:
                    raise RequeueOrder
                # Neither spool nor clock send a notification when they are ready, so check once a second.
                self._changed.wait(min(1.0, remaining))
            self._log_room()
            # Even if the gate is open: an order that is admitted now would only be executed at the next start.
            if self._closing:
                raise RequeueOrder

    def _log_room(self) -> None:
        """Log once when tasks begin to wait because the spool of reports is full, and once when tasks continue."""
        if self._spool.full and not self._is_blocked:
            log.error("orders_blocked_by_full_report_spool", undelivered_reports=self._spool.waiting)
        elif self._is_blocked and not self._spool.full:
            log.info("orders_resumed_because_report_spool_has_room", undelivered_reports=self._spool.waiting)
        self._is_blocked = self._spool.full

    def _open(self) -> bool:
        return self._rejection is None and self._clock.is_synchronized and self.room
