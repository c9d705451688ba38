"""Who the node is to the control plane right now, and how it goes on being so.

One file, `session.json`, holds all of it: the node's key pair, the newest session's secrets, and what came with them.
What is about to be asked for stands in `next-session.json` first, so an agent that was killed before it heard the
answer asks for the very same thing again, and gets the same answer. Each file is replaced whole.

A session is renewed at half its life, at the start, and when the control plane no longer knows it. A refusal is final
for this disk, because somebody else went on from its session or an admin took the access away: then only another
one-time token helps.
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

from node_agent.client import ControlPlaneAway, TurnedAway, ask_for_session, enrol
from node_agent.durable import private_folder, replace_file
from node_agent.settings import Settings
from node_agent.version import agent_version
from tasks.agent_api import (
    LONGEST_TOKEN,
    SHORTEST_TOKEN,
    Enrolment,
    EnrolmentClaims,
    Granted,
    Renewal,
    RenewalClaims,
)
from tasks.catalogue import ANNOUNCED
from tasks.failpoints import failpoint
from tasks.fields import Wire
from tasks.signing import Signer, new_private_key

log = structlog.get_logger(__name__)
File = TypeVar("File", bound=Wire)
FORMER_KEYS: Final = 32
"""Public keys that a node remembers beside those that hold: more changes of keys than orders on a disk outlive."""
_ASK_AGAIN_SECONDS: Final = 1.0


class Secrets(Wire):
    """The node's key and what it shows: the API the credential, its queue the password."""

    key: str
    credential: str
    queue_password: str

    @property
    def signer(self) -> Signer:
        return Signer.of_pem(self.key.encode())

    @classmethod
    def of(cls, key: str) -> "Secrets":
        """256 bits each."""
        return cls(key=key, credential=secrets.token_urlsafe(32), queue_password=secrets.token_urlsafe(32))


class Kept(Wire):
    """`session.json`: a session that was granted, and the token that the node once enrolled with."""

    secrets: Secrets
    token_sha256: str
    granted: Granted
    former_keys: tuple[str, ...] = ()


class Wanted(Wire):
    """`next-session.json`: what is asked for: to go on from session `after`, or to enrol with a token."""

    secrets: Secrets
    after: int | None = None
    token_sha256: str | None = None


class SessionFiles:
    """The two files in the state folder, for the owner's eyes alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = private_folder(folder)

    def kept(self) -> Kept | None:
        return _read(self._folder / "session.json", Kept)

    def keep(self, kept: Kept) -> None:
        failpoint("agent.enrolled.before")
        replace_file(self._folder / "session.json", kept.model_dump_json().encode())
        failpoint("agent.enrolled.after")
        (self._folder / "next-session.json").unlink(missing_ok=True)

    def wanted(self, like: Wanted) -> Wanted:
        """What is asked for already, if it is for the same purpose, and else `like`, which is on disk then."""
        path = self._folder / "next-session.json"
        before = _read(path, Wanted)
        if before is not None and (before.after, before.token_sha256) == (like.after, like.token_sha256):
            return before
        failpoint("agent.secrets.before")
        replace_file(path, like.model_dump_json().encode())
        failpoint("agent.secrets.after")
        return like


class Session:
    """The node's newest session. Thread-safe; `renewed` is called, in the thread that renewed, with each new one."""

    def __init__(self, settings: Settings, files: SessionFiles, kept: Kept) -> None:
        self._settings, self._files = settings, files
        self._kept = kept
        self._listeners: list[Callable[[Kept], None]] = []
        self._asking = threading.Lock()
        self._asked_at = -_ASK_AGAIN_SECONDS
        self.renewed_at = time.monotonic()
        """When the newest session began, by the monotonic clock; for one from the disk, when that was read."""

    @property
    def kept(self) -> Kept:
        return self._kept

    @property
    def bearer(self) -> str:
        """What the API is shown."""
        return f"{self._settings.node_id}:{self._kept.secrets.credential}"

    def on_renewal(self, listener: Callable[[Kept], None]) -> None:
        """Tell it of the session that holds, and of every later one."""
        with self._asking:
            self._listeners.append(listener)
            listener(self._kept)

    def renew(self) -> Kept:
        """Go on to a new session. Raises `ControlPlaneAway`, `TurnedAway`, `OSError`."""
        with self._asking:
            return self._renew()

    def renew_if_still(self, bearer: str) -> bool:
        """Go on to a new session because this one is refused; whether there is another than `bearer` now.

        At most once a second it is really tried: whoever asks in vain should not ask in a loop.
        """
        with self._asking:
            if bearer != self.bearer:
                return True
            if time.monotonic() - self._asked_at < _ASK_AGAIN_SECONDS:
                return False
            try:
                self._renew()
            except (ControlPlaneAway, TurnedAway, OSError) as error:
                log.warning("session_not_renewed", reason=str(error))
                return False
            return True

    def _renew(self) -> Kept:
        self._asked_at = time.monotonic()
        try:
            kept = renewed(self._settings, self._files, self._kept)
        except TurnedAway as refusal:
            token = unused_token(self._settings, self._kept)
            if token is None:
                raise
            log.warning("session_refused", reason=str(refusal))
            kept = enrolled(self._settings, self._files, token, self._kept)
        self._kept, self.renewed_at = kept, self._asked_at
        log.info("session_renewed", number=kept.granted.number)
        for listener in self._listeners:
            listener(kept)
        return kept


def renewed(settings: Settings, files: SessionFiles, kept: Kept) -> Kept:
    """Go on from a session, once. Raises `ControlPlaneAway`, `TurnedAway`, `OSError`."""
    number = kept.granted.number
    asked = files.wanted(Wanted(secrets=Secrets.of(kept.secrets.key), after=number)).secrets
    claims = RenewalClaims(
        node_id=settings.node_id,
        number=number,
        presented_sha256=_digest(kept.secrets.credential),
        credential_sha256=_digest(asked.credential),
        queue_password_sha256=_digest(asked.queue_password),
        speaks=ANNOUNCED,
    )
    proof = kept.secrets.signer.sign("session+jws", claims.model_dump_json().encode())
    granted = ask_for_session(settings, Renewal(node_id=settings.node_id, proof=proof))
    return _keep(files, kept, Kept(secrets=asked, token_sha256=kept.token_sha256, granted=granted))


def enrolled(settings: Settings, files: SessionFiles, token: str, before: Kept | None) -> Kept:
    """Enrol with a one-time token, by a key pair made for it. Raises `ControlPlaneAway`, `TurnedAway`, `OSError`."""
    token_sha256 = _digest(token)
    fresh = Secrets.of(new_private_key().decode())
    asked = files.wanted(Wanted(secrets=fresh, token_sha256=token_sha256)).secrets
    claims = EnrolmentClaims(
        node_id=settings.node_id,
        token_sha256=token_sha256,
        credential_sha256=_digest(asked.credential),
        queue_password_sha256=_digest(asked.queue_password),
        agent_version=agent_version(),
        speaks=ANNOUNCED,
    )
    proof = asked.signer.sign("session+jws", claims.model_dump_json().encode())
    granted = enrol(settings, Enrolment(token=token, public_key=asked.signer.public, proof=proof))
    log.info("enrolled", node_id=granted.node_id, subnet=granted.subnet, queue=granted.queue.host)
    return _keep(files, before, Kept(secrets=asked, token_sha256=token_sha256, granted=granted))


def unused_token(settings: Settings, kept: Kept | None) -> str | None:
    """The one-time token in its file, unless the node enrolled with that very one."""
    try:
        token = settings.enrolment_token_file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    if not SHORTEST_TOKEN <= len(token) <= LONGEST_TOKEN:
        return None  # an emptied file, as good as none
    return token if kept is None or _digest(token) != kept.token_sha256 else None


def _keep(files: SessionFiles, before: Kept | None, kept: Kept) -> Kept:
    if before is not None:
        known = dict.fromkeys((*before.granted.order_keys, *before.former_keys))
        former = tuple(key for key in known if key not in kept.granted.order_keys)
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
        # Its input is secret, and so is not said.
        log.error("session_file_unreadable", path=str(path), errors=error.error_count())
        return None
