"""Renews the node's session in time, and says when the control plane will not have it any more."""

import random
import time

import structlog

from node_agent.client import ControlPlaneAway, TurnedAway
from node_agent.gate import Gate
from node_agent.sessions import Session
from tasks.backoff import Backoff
from tasks.timetable import Timetable

log = structlog.get_logger(__name__)


class Renewal:
    """Renews at about half of a session's life, spread so that a fleet does not come at once; or every `seconds`."""

    def __init__(self, session: Session, gate: Gate, timetable: Timetable, *, seconds: float | None) -> None:
        self._session, self._gate, self._seconds = session, gate, seconds
        self._backoff = Backoff(cap=15.0)
        self._entry = timetable.enter(self._try, name="renewal", after=None)

    def start(self) -> None:
        self._entry.wake(self._half_life())

    def stop(self, timeout: float) -> None:
        self._entry.cancel(timeout)

    def _try(self) -> float:
        """Renew; seconds until the next time."""
        if (left := self._half_life() - (time.monotonic() - self._session.renewed_at)) > 0:
            return left  # somebody else did, who was refused
        try:
            self._session.renew()
        except ControlPlaneAway as away:
            log.warning("session_not_renewed", reason=str(away))
            return max(away.retry_after, self._backoff.next())
        except OSError as away:
            # A disk that is full passes too: nothing was asked for, or it is asked for again with the same secrets.
            log.warning("session_not_renewed", reason=str(away))
            return self._backoff.next()
        except TurnedAway as refusal:
            self._gate.turned_away(str(refusal))
            return self._backoff.next()
        self._backoff.reset()
        return self._half_life()

    def _half_life(self) -> float:
        half = self._session.kept.granted.lifetime_seconds / 2
        return (self._seconds or half) * random.uniform(0.9, 1.0)  # noqa: S311 (spread, not secrecy)
