"""The node's identity toward the control plane: its key pair and its current session, stored on disk and renewed.

`session.json` holds the node's key pair, the secrets of the newest session, and the data granted with it. A request is
stored in `next-session.json` before it is sent, so an agent that was killed before it received the response repeats the
same request and gets the same response. Each file is replaced atomically.

A session is renewed at half its lifetime, at the start of the agent, and when the control plane rejects the session. If
a renewal is refused, the session on this disk can never be renewed: another agent with a copy of the disk has renewed
it, or an admin revoked the node's access. Then a new one-time token is required.
"""

import secrets
import threading
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Final, TypeVar

import structlog
from pydantic import ValidationError

from node_agent.runtime.durable import private_folder, replace_file
from node_agent.runtime.version import agent_version
from node_agent.settings import Settings
from node_agent.transport.client import ControlPlaneUnavailable, RequestRejected, enrol, request_session
from tasks.agent_api import (
    LONGEST_TOKEN,
    SHORTEST_TOKEN,
    Enrolment,
    EnrolmentClaims,
    Renewal,
    RenewalClaims,
    SessionGrant,
)
from tasks.catalogue import ANNOUNCED, ROOT_DISK
from tasks.failpoints import failpoint
from tasks.fields import Wire
from tasks.signing import Signer, new_private_key

log = structlog.get_logger(__name__)
File = TypeVar("File", bound=Wire)
FORMER_KEYS: Final = 32
"""Number of retired public keys that a node stores: more than the number of key changes during the time that an order
is stored on a disk."""
_RETRY_SECONDS: Final = 1.0


class Secrets(Wire):
    """Secrets of one session: the node's private key, its credential for the API and its password for the queue."""

    key: str
    credential: str
    queue_password: str

    @property
    def signer(self) -> Signer:
        """Signer that signs the node's session requests with its private key."""
        return Signer.of_pem(self.key.encode())

    @classmethod
    def of(cls, key: str) -> "Secrets":
        """Return the secrets of a session: the private key `key` (PEM), and a new credential and queue password.

        The credential and the password have 256 random bits each.
        """
        return cls(key=key, credential=secrets.token_urlsafe(32), queue_password=secrets.token_urlsafe(32))


class StoredSession(Wire):
    """Content of `session.json`: a granted session, and the hash of the one-time token with which the node enrolled."""

    secrets: Secrets
    token_sha256: str
    granted: SessionGrant
    former_keys: tuple[str, ...] = ()


class RequestedSession(Wire):
    """Content of `next-session.json`: a request to renew session number `after`, or to enrol with a one-time token."""

    secrets: Secrets
    after: int | None = None
    token_sha256: str | None = None


class SessionFiles:
    """The files `session.json` and `next-session.json` in the agent's state folder, readable only by their owner."""

    def __init__(self, folder: Path) -> None:
        self._folder = private_folder(folder)

    def kept(self) -> StoredSession | None:
        """Return the session in `session.json`, or None if the file is missing or cannot be read."""
        return _read(self._folder / "session.json", StoredSession)

    def keep(self, kept: StoredSession) -> None:
        """Store a granted session in `session.json`, and delete the stored request for the session."""
        failpoint("agent.enrolled.before")
        replace_file(self._folder / "session.json", kept.model_dump_json().encode())
        failpoint("agent.enrolled.after")
        (self._folder / "next-session.json").unlink(missing_ok=True)

    def requested(self, request: RequestedSession) -> RequestedSession:
        """Return the stored session request if it is for the same renewal or the same one-time token as `request`; else
        store and return `request`.
        """
        path = self._folder / "next-session.json"
        stored = _read(path, RequestedSession)
        if stored is not None and (stored.after, stored.token_sha256) == (
            request.after,
            request.token_sha256,
        ):
            return stored
        failpoint("agent.secrets.before")
        replace_file(path, request.model_dump_json().encode())
        failpoint("agent.secrets.after")
        return request


class Session:
    """The node's newest session. Thread-safe.

    After each renewal, listeners are called with the new session, in the thread that renewed the session.
    """

    def __init__(self, settings: Settings, files: SessionFiles, kept: StoredSession) -> None:
        self._settings, self._files = settings, files
        self._kept = kept
        self._listeners: list[Callable[[StoredSession], None]] = []
        self._renewing = threading.Lock()
        self._requested_at = -_RETRY_SECONDS
        self.renewed_at = time.monotonic()
        """Monotonic time at which the newest session was requested; for a session from the disk, the time at which it
        was read."""

    @property
    def kept(self) -> StoredSession:
        """The node's newest session."""
        return self._kept

    @property
    def bearer(self) -> str:
        """Bearer token of the node for the control plane's API: node id and credential."""
        return f"{self._settings.node_id}:{self._kept.secrets.credential}"

    def on_renewal(self, listener: Callable[[StoredSession], None]) -> None:
        """Call `listener` with the current session now, and with every later session of the node."""
        with self._renewing:
            self._listeners.append(listener)
            listener(self._kept)

    def renew(self) -> StoredSession:
        """Renew the node's session. Raises `ControlPlaneUnavailable`, `RequestRejected`, `OSError`."""
        with self._renewing:
            return self._renew()

    def renew_if_unchanged(self, bearer: str) -> bool:
        """Renew the session because the API refused the token `bearer`. Return whether the node now has another token.

        The renewal is attempted at most once per second, so that a caller that is always refused does not loop.
        """
        with self._renewing:
            if bearer != self.bearer:
                return True
            if time.monotonic() - self._requested_at < _RETRY_SECONDS:
                return False
            try:
                self._renew()
            except (ControlPlaneUnavailable, RequestRejected, OSError) as error:
                log.warning("node_session_not_renewed", reason=str(error))
                return False
            return True

    def _renew(self) -> StoredSession:
        self._requested_at = time.monotonic()
        try:
            kept = renewed(self._settings, self._files, self._kept)
        except RequestRejected as refusal:
            token = unused_token(self._settings, self._kept)
            if token is None:
                raise
            log.warning("node_session_refused_by_control_plane", reason=str(refusal))
            kept = enrolled(self._settings, self._files, token, self._kept)
        self._kept, self.renewed_at = kept, self._requested_at
        log.info("node_session_renewed", session_number=kept.granted.number)
        for listener in self._listeners:
            listener(kept)
        return kept


def capabilities_of(settings: Settings) -> tuple[str, ...]:
    """Return the task types and features that a node with the given settings supports. A simulated node supports
    all.
    """
    if settings.root_disks is None and settings.simulated is None:
        return tuple(each for each in ANNOUNCED if each != ROOT_DISK)
    return ANNOUNCED


def renewed(settings: Settings, files: SessionFiles, kept: StoredSession) -> StoredSession:
    """Renew the node's session with one request, and store the new session.

    Raises `ControlPlaneUnavailable`, `RequestRejected`, `OSError`.
    """
    number = kept.granted.number
    requested = files.requested(RequestedSession(secrets=Secrets.of(kept.secrets.key), after=number)).secrets
    claims = RenewalClaims(
        node_id=settings.node_id,
        number=number,
        presented_sha256=_digest(kept.secrets.credential),
        credential_sha256=_digest(requested.credential),
        queue_password_sha256=_digest(requested.queue_password),
        capabilities=capabilities_of(settings),
    )
    proof = kept.secrets.signer.sign("session+jws", claims.model_dump_json().encode())
    granted = request_session(settings, Renewal(node_id=settings.node_id, proof=proof))
    return _keep(
        files, kept, StoredSession(secrets=requested, token_sha256=kept.token_sha256, granted=granted)
    )


def enrolled(
    settings: Settings, files: SessionFiles, token: str, before: StoredSession | None
) -> StoredSession:
    """Enrol the node with a one-time token and a new key pair, and store the granted session.

    Raises `ControlPlaneUnavailable`, `RequestRejected`, `OSError`.
    """
    token_sha256 = _digest(token)
    fresh = Secrets.of(new_private_key().decode())
    requested = files.requested(RequestedSession(secrets=fresh, token_sha256=token_sha256)).secrets
    claims = EnrolmentClaims(
        node_id=settings.node_id,
        token_sha256=token_sha256,
        credential_sha256=_digest(requested.credential),
        queue_password_sha256=_digest(requested.queue_password),
        agent_version=agent_version(),
        capabilities=capabilities_of(settings),
    )
    proof = requested.signer.sign("session+jws", claims.model_dump_json().encode())
    granted = enrol(settings, Enrolment(token=token, public_key=requested.signer.public, proof=proof))
    log.info("node_enrolled", node_id=granted.node_id, subnet=granted.subnet, queue_host=granted.queue.host)
    return _keep(files, before, StoredSession(secrets=requested, token_sha256=token_sha256, granted=granted))


def unused_token(settings: Settings, kept: StoredSession | None) -> str | None:
    """Return the one-time token in the token file; None without a token, or if the node already enrolled with it."""
    try:
        token = settings.enrolment_token_file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    if not SHORTEST_TOKEN <= len(token) <= LONGEST_TOKEN:
        return None  # an emptied file counts as absent
    return token if kept is None or _digest(token) != kept.token_sha256 else None


def _keep(files: SessionFiles, before: StoredSession | None, kept: StoredSession) -> StoredSession:
    if before is not None:
        earlier = dict.fromkeys((*before.granted.order_keys, *before.former_keys))
        former = tuple(key for key in earlier if key not in kept.granted.order_keys)
        kept = kept.model_copy(update={"former_keys": former[:FORMER_KEYS]})
    files.keep(kept)
    return kept


def _digest(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()


def _read(path: Path, kind: type[File]) -> File | None:
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        # The error's message would contain the secrets, so only the number of errors is logged.
        log.error("node_session_file_invalid", path=str(path), error_count=error.error_count())
        return None
