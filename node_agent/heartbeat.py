"""The agent says that it lives, and learns what time it is.

A heartbeat is no fact and is never spooled: a late one would say nothing true.
"""

import time
from collections.abc import Callable
from typing import Final

import structlog

from node_agent.client import ControlPlane, ControlPlaneAway, TurnedAway
from node_agent.clock import NodeClock
from node_agent.contact import Contact
from node_agent.gate import Gate
from node_agent.spool import Spool
from node_agent.version import agent_version
from tasks.agent_api import Heartbeat
from tasks.timetable import Timetable

UNSETTLED_SECONDS: Final = 0.5
log = structlog.get_logger(__name__)


class HeartbeatSender:
    """From `start` on it beats every `seconds()`; `beat` does it once, now."""

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
        self._away: str | None = None
        self._entry = timetable.enter(self._beat_again, name="heartbeat", after=None)

    def start(self) -> None:
        self._entry.wake(self._pause())

    def stop(self, timeout: float) -> None:
        self._entry.cancel(timeout)

    def resynced(self) -> None:
        """From now on, what was not said about a slot is as it was. That is said at once."""
        self._resynced = True
        self._entry.wake()

    def delivered(self) -> None:
        """Reports were taken. If they were the last that waited, that is said at once, unless it was said before."""
        if not self._settled and self._is_settled():
            self._entry.wake()

    def beat(self) -> None:
        asked = time.monotonic()
        said = Heartbeat(
            agent_version=agent_version(), spooled_reports=self._spool.waiting, resynced=self._resynced
        )
        try:
            answer = self._control_plane.heartbeat(said)
        except ControlPlaneAway as away:
            self._note(str(away))
        except TurnedAway as refusal:
            self._note(None)
            self._gate.turned_away(str(refusal))
        else:
            self._clock.learn(answer.now, asked=asked, answered=time.monotonic())
            self._note(None)
            self._settled = said.resynced and said.spooled_reports == 0
            # The last of them may have been taken while this was being said.
            self.delivered()
            self._gate.welcome()
            self._contact.heard()

    def _note(self, away: str | None) -> None:
        """Log the control plane's going and coming back, once each, and why it stays away when that changes."""
        if away is not None and away != self._away:
            log.warning("control_plane_away", reason=away)
        if away is None and self._away is not None:
            log.info("control_plane_back")
        self._away = away

    def _beat_again(self) -> float:
        pause = self._pause()
        self.beat()
        return pause

    def _pause(self) -> float:
        # A node gets nothing new before it is heard to have compared: it does not keep anybody waiting for the news.
        # Reports on their way are no reason to beat more often: a whole fleet would, while its control plane is away.
        return self._seconds() if self._resynced else min(self._seconds(), UNSETTLED_SECONDS)

    def _is_settled(self) -> bool:
        return self._resynced and self._spool.waiting == 0
