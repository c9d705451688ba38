"""Becoming a known node: secrets made here, and their hashes shown with the one-time token.

The secrets are on disk before their hashes are sent, so an agent killed in between asks again with the same ones
and gets the same answer. The answer is kept: an enrolled node starts without the control plane. While the token is
still there the agent asks again at each start, because the queue may have moved; it does not depend on the answer.
"""

import hashlib
import secrets
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from pydantic import ValidationError

from events.values import NodeId
from node_agent.backoff import Backoff
from node_agent.client import ControlPlaneAway, TurnedAway, enrol
from node_agent.durable import private_folder, replace_file
from node_agent.halt import Halt
from node_agent.settings import Settings
from node_agent.version import agent_version
from tasks.agent_api import Enrolled, Enrolment
from tasks.failpoints import failpoint

log = structlog.get_logger(__name__)


class EnrolmentRefused(Exception):
    """The control plane will not have this node, or there is no token to ask with. A person must act."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who the node is to the control plane and to its queue."""

    node_id: NodeId
    credential: str = field(repr=False)
    queue_password: str = field(repr=False)
    enrolled: Enrolled


def become_known(settings: Settings, halt: Halt) -> Identity:
    """Enrol, waiting as long as it takes. Raises `EnrolmentRefused`, `Halted`, `OSError`."""
    folder = private_folder(settings.state_folder)
    credential, queue_password = _secret(folder / "credential"), _secret(folder / "queue-password")
    failpoint("agent.secrets.after")
    known = _remembered(folder)
    asked = (
        _ask_again(settings, credential, queue_password)
        if known
        else _ask(settings, credential, queue_password, halt)
    )
    enrolled = asked or known
    assert enrolled is not None, "asking without an answer to fall back on ends only with one"
    if enrolled != known:
        failpoint("agent.enrolled.before")
        replace_file(folder / "enrolled.json", enrolled.model_dump_json().encode())
        log.info("enrolled", node_id=enrolled.node_id, subnet=enrolled.subnet, queue=enrolled.queue.host)
    return Identity(settings.node_id, credential, queue_password, enrolled)


def _ask(settings: Settings, credential: str, queue_password: str, halt: Halt) -> Enrolled:
    backoff = Backoff(cap=5.0)
    while True:
        try:
            return enrol(settings.api_url, _enrolment(settings, credential, queue_password))
        except ControlPlaneAway as away:
            log.warning("enrolment_waits", reason=str(away))
        except TurnedAway as refusal:
            raise EnrolmentRefused(str(refusal)) from refusal
        halt.wait(backoff.next())


def _ask_again(settings: Settings, credential: str, queue_password: str) -> Enrolled | None:
    try:
        return enrol(settings.api_url, _enrolment(settings, credential, queue_password))
    except (ControlPlaneAway, TurnedAway, EnrolmentRefused) as error:
        log.info("enrolment_not_renewed", reason=str(error))
        return None


def _enrolment(settings: Settings, credential: str, queue_password: str) -> Enrolment:
    try:
        token = settings.enrolment_token_file.read_text().strip()
        return Enrolment(
            node_id=settings.node_id,
            token=token,
            credential_sha256=hashlib.sha256(credential.encode()).hexdigest(),
            queue_password_sha256=hashlib.sha256(queue_password.encode()).hexdigest(),
            agent_version=agent_version(),
        )
    except OSError as error:
        raise EnrolmentRefused(
            f"no enrolment token: {settings.enrolment_token_file}: {error.strerror}"
        ) from error
    except ValidationError as error:
        # Not chained: pydantic's message quotes its input, and the input is the token.
        fields = ", ".join(str(wrong["loc"][0]) for wrong in error.errors())
        raise EnrolmentRefused(f"{settings.enrolment_token_file} holds no usable token ({fields})") from None


def _secret(path: Path) -> str:
    """The secret in `path`, made at the first call: 256 bits, for the owner's eyes alone."""
    if not path.exists():
        replace_file(path, secrets.token_urlsafe(32).encode())
    return path.read_text()


def _remembered(folder: Path) -> Enrolled | None:
    try:
        return Enrolled.model_validate_json((folder / "enrolled.json").read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        log.warning("enrolment_unreadable", error=str(error))
        return None
