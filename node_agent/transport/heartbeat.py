"""Heartbeats: they report that the agent is alive, and their answers set the node's clock.

A heartbeat is never spooled: it describes the current state, so a late delivery would report an outdated state.
"""

import time
from collections.abc import Callable
from typing import Final

import structlog

from node_agent.runtime.clock import NodeClock
from node_agent.runtime.timetable import Timetable
from node_agent.runtime.version import agent_version
from node_agent.transport.client import ControlPlane, ControlPlaneUnavailable, RequestRejected
from node_agent.transport.contact import Contact
from node_agent.transport.gate import Gate
from node_agent.transport.spool import Spool
from tasks.agent_api import Heartbeat

UNSETTLED_SECONDS: Final = 0.5
"""Maximum interval between heartbeats until the node has compared its orders with the desired state."""
log = structlog.get_logger(__name__)


class HeartbeatSender:
    """Sender of heartbeats: periodically, every `seconds()` seconds after `start`, and at once by `beat`."""

    def __init__(
        self,
        control_plane: ControlPlane,
        clock: NodeClock,
        spool: Spool,
        gate: Gate,
        timetable: Timetable,
        *,
        contact: Contact,
        seconds: Callable[[], float],
    ) -> None:
        self._control_plane, self._clock, self._spool, self._gate = control_plane, clock, spool, gate
        self._contact = contact
        self._seconds = seconds
        self._resynced = False
        self._settled = False
        self._error: str | None = None
        self._entry = timetable.enter(self._beat_again, name="heartbeat", after=None)

    def start(self) -> None:
        """Begin to send periodic heartbeats."""
        self._entry.wake(self._pause())

    def stop(self, timeout: float) -> None:
        """Send no more heartbeats; wait up to `timeout` seconds for a heartbeat in flight."""
        self._entry.cancel(timeout)

    def resynced(self) -> None:
        """Send a heartbeat at once that reports that the node has compared all slots with the desired state.

        From this heartbeat on, the control plane may treat a slot without a report as unchanged.
        """
        self._resynced = True
        self._entry.wake()

    def delivered(self) -> None:
        """Send a heartbeat at once if all spooled reports are delivered and no heartbeat has reported that yet."""
        if not self._settled and self._is_settled():
            self._entry.wake()

    def beat(self) -> None:
        """Send a heartbeat now, and apply the control plane's answer: its time, and whether it accepts the node."""
        asked = time.monotonic()
        heartbeat = Heartbeat(
            agent_version=agent_version(), spooled_reports=self._spool.waiting, resynced=self._resynced
        )
        try:
            answer = self._control_plane.heartbeat(heartbeat)
        except ControlPlaneUnavailable as error:
            self._log_reachability(str(error))
        except RequestRejected as refusal:
            self._log_reachability(None)
            self._gate.stop_orders(str(refusal))
        else:
            self._clock.synchronize(answer.now, asked=asked, answered=time.monotonic())
            self._log_reachability(None)
            self._settled = heartbeat.resynced and heartbeat.spooled_reports == 0
            # The last report may have been delivered while this heartbeat was in flight.
            self.delivered()
            self._gate.resume_orders()
            self._contact.record_answer()

    def _log_reachability(self, error: str | None) -> None:
        """Log when the control plane becomes unreachable, when the error changes, and when it is reachable again."""
        if error is not None and error != self._error:
            log.warning("control_plane_unreachable", reason=error)
        if error is None and self._error is not None:
            log.info("control_plane_reachable")
        self._error = error

    def _beat_again(self) -> float:
        pause = self._pause()
        self.beat()
        return pause

    def _pause(self) -> float:
        # A node gets no new slices before a heartbeat reports that it has compared its orders, so report that soon.
        # Spooled reports are not a reason for frequent heartbeats: while the control plane is down, the whole fleet
        # would send them.
        return self._seconds() if self._resynced else min(self._seconds(), UNSETTLED_SECONDS)

    def _is_settled(self) -> bool:
        return self._resynced and self._spool.waiting == 0
