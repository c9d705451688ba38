"""Becoming a known node: by the session on its disk, and without one by the one-time token.

A node that has a session goes on from it, and starts without the control plane too, or with its disk full. One whose
session is refused must not go on from its disk: that is a copy, or older than what the node did since, and slices as
it remembers them may be gone or somewhere else. It ends, and a person must act; a new token in the token file is all
it takes.
"""

import structlog

from node_agent.client import ControlPlaneAway, TurnedAway
from node_agent.halt import Halt
from node_agent.sessions import Kept, Session, SessionFiles, enrolled, unused_token
from node_agent.settings import Settings
from tasks.backoff import Backoff

log = structlog.get_logger(__name__)


class EnrolmentRefused(Exception):
    """The control plane will not have this node, or there is no token to ask with. A person must act."""


def become_known(settings: Settings, halt: Halt) -> Session:
    """Renew the session, or enrol, waiting as long as that takes. Raises `EnrolmentRefused`, `Halted`, `OSError`."""
    files = SessionFiles(settings.state_folder)
    kept = files.kept()
    if kept is None:
        return Session(settings, files, _enrol(settings, files, halt))
    session = Session(settings, files, kept)
    try:
        session.renew()
    except (ControlPlaneAway, OSError) as away:
        log.warning("session_not_renewed", reason=str(away))
    except TurnedAway as refusal:
        raise EnrolmentRefused(str(refusal)) from refusal
    return session


def _enrol(settings: Settings, files: SessionFiles, halt: Halt) -> Kept:
    token = unused_token(settings, None)
    if token is None:
        raise EnrolmentRefused(f"there is no enrolment token in {settings.enrolment_token_file}")
    backoff = Backoff(cap=5.0)
    while True:
        try:
            return enrolled(settings, files, token, None)
        except ControlPlaneAway as away:
            log.warning("enrolment_waits", reason=str(away))
        except TurnedAway as refusal:
            raise EnrolmentRefused(str(refusal)) from refusal
        halt.wait(backoff.next())
