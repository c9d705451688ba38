"""Timely renewal of the node's session. If the control plane refuses the renewal, the node executes no new order."""

import random
import time

import structlog

from node_agent.runtime.backoff import Backoff
from node_agent.runtime.timetable import Timetable
from node_agent.transport.client import ControlPlaneUnavailable, RequestRejected
from node_agent.transport.gate import Gate
from node_agent.transport.sessions import Session

log = structlog.get_logger(__name__)


class Renewal:
    """Timer that renews the node's session about every `seconds`; None: at about half of the session's lifetime.

    The time is randomized, so that the nodes of a fleet do not renew their sessions at the same time.
    """

    def __init__(self, session: Session, gate: Gate, timetable: Timetable, *, seconds: float | None) -> None:
        self._session, self._gate, self._seconds = session, gate, seconds
        self._backoff = Backoff(cap=15.0)
        self._entry = timetable.enter(self._try, name="renewal", after=None)

    def start(self) -> None:
        self._entry.wake(self._half_life())

    def stop(self, timeout: float) -> None:
        self._entry.cancel(timeout)

    def _try(self) -> float:
        """Renew the node's session if the renewal is due, and return the seconds until the next attempt."""
        if (left := self._half_life() - (time.monotonic() - self._session.renewed_at)) > 0:
            return left  # a refused request has already renewed the session
        try:
            self._session.renew()
        except ControlPlaneUnavailable as away:
            log.warning("node_session_not_renewed", reason=str(away))
            return max(away.retry_after, self._backoff.next())
        except OSError as error:
            # A full disk may recover. Either nothing was requested, or the same secrets are requested again.
            log.warning("node_session_not_renewed", reason=str(error))
            return self._backoff.next()
        except RequestRejected as refusal:
            self._gate.stop_orders(str(refusal))
            return self._backoff.next()
        self._backoff.reset()
        return self._half_life()

    def _half_life(self) -> float:
        half = self._session.kept.granted.lifetime_seconds / 2
        return (self._seconds or half) * random.uniform(0.9, 1.0)  # noqa: S311 (spread, not secrecy)
