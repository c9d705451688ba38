"""Enrolment of a node: continue the session stored on the node's disk, or else enrol with a one-time token.

A node with a stored session continues the session, and can start while the control plane is unavailable or the disk is
full. If the control plane rejects the stored session, the agent must not continue: its disk is a copy or an old backup,
and the slices in its records may be gone or on another node. The agent exits, and exits again at each start until an
operator writes a new token to the token file.
"""

import structlog

from node_agent.runtime.backoff import Backoff
from node_agent.runtime.halt import Halt
from node_agent.settings import Settings
from node_agent.transport.client import ControlPlaneUnavailable, RequestRejected
from node_agent.transport.sessions import Session, SessionFiles, StoredSession, enrolled, unused_token

log = structlog.get_logger(__name__)


class EnrolmentRefused(Exception):
    """The control plane rejected this node, or the node has no enrolment token. An operator must provide a token."""


def enrol_or_resume(settings: Settings, halt: Halt) -> Session:
    """Renew the stored session, or enrol the node; the enrolment is retried without a limit.

    Raises `EnrolmentRefused`, `Halted`, `OSError`.
    """
    files = SessionFiles(settings.state_folder)
    kept = files.kept()
    if kept is None:
        return Session(settings, files, _enrol(settings, files, halt))
    session = Session(settings, files, kept)
    try:
        session.renew()
    except (ControlPlaneUnavailable, OSError) as error:
        log.warning("node_session_not_renewed_at_start", reason=str(error))
    except RequestRejected as refusal:
        raise EnrolmentRefused(str(refusal)) from refusal
    return session


def _enrol(settings: Settings, files: SessionFiles, halt: Halt) -> StoredSession:
    token = unused_token(settings, None)
    if token is None:
        raise EnrolmentRefused(
            f"there is no enrolment token in {settings.enrolment_token_file}; write a new token to this file"
        )
    backoff = Backoff(cap=5.0)
    while True:
        try:
            return enrolled(settings, files, token, None)
        except ControlPlaneUnavailable as error:
            log.warning("node_enrolment_retried", reason=str(error))
        except RequestRejected as refusal:
            raise EnrolmentRefused(str(refusal)) from refusal
        halt.wait(backoff.next())
