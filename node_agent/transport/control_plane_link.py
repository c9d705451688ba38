"""An agent's messages to its control plane. Each kind of message has its own job, and no job waits for another job.

The jobs start before all other parts of the agent and stop after them, so that all reports of these parts are sent.
"""

from node_agent.runtime.clock import NodeClock
from node_agent.runtime.timetable import Timetable
from node_agent.settings import Settings
from node_agent.transport.client import ControlPlane
from node_agent.transport.contact import Contact
from node_agent.transport.gate import Gate
from node_agent.transport.heartbeat import HeartbeatSender
from node_agent.transport.progress import ProgressSender
from node_agent.transport.renewal import Renewal
from node_agent.transport.reporter import Reporter
from node_agent.transport.sessions import Session
from node_agent.transport.spool import Spool


class ControlPlaneLink:
    """Connection of an agent to its control plane: heartbeat, session renewal, reports and progress."""

    def __init__(self, settings: Settings, session: Session, timetable: Timetable) -> None:
        self._settings, self._session, self._timetable = settings, session, timetable
        self.clock = NodeClock()
        self.control_plane = ControlPlane(settings, session)
        self._spool = spool = Spool(settings.state_folder / "spool")
        self.gate = Gate(spool, self.clock)
        self.contact = Contact(self._beat_seconds)
        self.progress = ProgressSender(self.clock)
        self.heartbeat = HeartbeatSender(
            self.control_plane,
            self.clock,
            spool,
            self.gate,
            timetable,
            contact=self.contact,
            seconds=self._beat_seconds,
        )
        self.reporter = Reporter(spool, self.clock, self.contact.record_lost_state, self.heartbeat.delivered)
        self._renewal = Renewal(session, self.gate, timetable, seconds=settings.renewal_seconds)

    def start(self) -> None:
        """Send one heartbeat, to get the control plane's time; then start all jobs of the link, even if the heartbeat
        failed.
        """
        self.heartbeat.beat()
        # A new session may require more frequent heartbeats than the one under which the next one was scheduled.
        self._session.on_renewal(lambda _kept: self.heartbeat.start())
        self._renewal.start()
        self.reporter.start(self.control_plane, self._timetable)
        self.progress.start(self.control_plane, self._timetable)

    @property
    def undelivered_reports(self) -> int:
        """Number of the node's reports that the control plane has not accepted yet."""
        return self._spool.waiting

    def stop(self, timeout: float) -> None:
        for part in (self.heartbeat, self._renewal, self.progress, self.reporter):
            part.stop(timeout)
        self.control_plane.close()

    def _beat_seconds(self) -> float:
        """Return the heartbeat interval in seconds: the configured interval, or by default the session's interval."""
        return self._settings.heartbeat_seconds or self._session.kept.granted.heartbeat_seconds
