"""All that one agent says to its control plane, as one: each part is a job, and none waits for another.

It comes up before anything is done and goes down after everything is, so that what is seen and done meanwhile is told.
"""

from node_agent.client import ControlPlane
from node_agent.clock import NodeClock
from node_agent.contact import Contact
from node_agent.gate import Gate
from node_agent.heartbeat import HeartbeatSender
from node_agent.progress import ProgressSender
from node_agent.renewal import Renewal
from node_agent.reporter import Reporter
from node_agent.sessions import Session
from node_agent.settings import Settings
from node_agent.spool import Spool
from tasks.timetable import Timetable


class Talking:
    """Its parts are for those who have something to say."""

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
        self.reporter = Reporter(spool, self.clock, self.contact.forgotten, self.heartbeat.delivered)
        self._renewal = Renewal(session, self.gate, timetable, seconds=settings.renewal_seconds)

    def start(self) -> None:
        """Returns when the control plane was asked what time it is, whatever came of it."""
        self.heartbeat.beat()
        # A new session may want to hear more often than the one under which the next beat was planned.
        self._session.on_renewal(lambda _kept: self.heartbeat.start())
        self._renewal.start()
        self.reporter.start(self.control_plane, self._timetable)
        self.progress.start(self.control_plane, self._timetable)

    @property
    def untold(self) -> int:
        """Reports that the control plane has not taken yet."""
        return self._spool.waiting

    def stop(self, timeout: float) -> None:
        for part in (self.heartbeat, self._renewal, self.progress, self.reporter):
            part.stop(timeout)
        self.control_plane.close()

    def _beat_seconds(self) -> float:
        """As the control plane says, unless told otherwise."""
        return self._settings.heartbeat_seconds or self._session.kept.granted.heartbeat_seconds
