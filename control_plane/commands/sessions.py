"""Commands about sessions of callers: start and end a session."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from control_plane.decisions.refusals import Conflict, Objection, UnknownName
from control_plane.handle import Command, Decision, Transaction
from control_plane.origin import Origin
from events.ledger.append import Change
from events.sessions import SessionEnded, SessionStarted
from events.values import ProjectId, SessionId, new_uuid, session_of, stream_of_session
from read_models import sessions


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedSession:
    """A session that the caller `actor` requests. `credential` is the id of the API key or token that the request was
    sent with.

    `ends_by` is the expiry of the API key; None for a key without expiry, and for a token, which the session may
    outlive. `role`, `projects` and `scopes` are what a token grants, and are not given for a key. `lifetime` of None
    means the maximum.
    """

    actor: str
    credential: str
    label: str
    idle_seconds: int
    lifetime: timedelta | None = None
    ends_by: datetime | None = None
    token_issued_at: datetime | None = None
    role: str | None = None
    projects: tuple[ProjectId, ...] = ()
    scopes: tuple[str, ...] = ()


def start_session(
    wanted: RequestedSession,
    secret_sha256: str,
    origin: Origin,
    most: timedelta,
    render: Callable[[SessionStarted], str],
) -> Command:
    """Start a session, recorded by the SHA-256 (hex) of its secret; `render` builds the JSON answer from the recorded
    fact.

    Raises `Conflict` for a lifetime above `most`, the maximum that the operator sets. The credential is not verified
    again: each request with the session is refused if the credential was revoked, also at the same time as the start.
    """

    async def command(transaction: Transaction) -> Decision:
        lifetime = most if wanted.lifetime is None else wanted.lifetime
        if lifetime > most:
            reason = (
                f"a session of {lifetime.total_seconds():.0f} seconds exceeds the maximum lifetime of"
                f" {most.total_seconds():.0f} seconds"
            )
            raise Conflict(Objection("lifetime_too_long", reason, "/lifetime_seconds"))
        now = transaction.now
        expires_at = now + lifetime
        fact = SessionStarted(
            session_id=session_of(new_uuid()),
            actor=wanted.actor,
            credential=wanted.credential,
            secret_sha256=secret_sha256,
            label=wanted.label,
            started_at=now,
            expires_at=expires_at if wanted.ends_by is None else min(expires_at, wanted.ends_by),
            idle_seconds=wanted.idle_seconds,
            token_issued_at=wanted.token_issued_at,
            role=wanted.role,
            projects=wanted.projects,
            scopes=wanted.scopes,
        )
        change = Change(stream_of_session(fact.session_id), 0, (fact,))
        return Decision((change,), origin.at(now), render(fact))

    return command


def end_session(session_id: SessionId, reason: str, origin: Origin) -> Command:
    """End a session: it is refused from now on. Raises `UnknownName`. Ending it again changes nothing."""

    async def command(transaction: Transaction) -> Decision:
        row = await sessions.locked(transaction.conn, session_id)
        if row is None:
            raise unknown_session(session_id)
        if row.ended is not None:
            return Decision((), origin.at(transaction.now))
        change = Change(stream_of_session(session_id), row.version, (SessionEnded(session_id, reason),))
        return Decision((change,), origin.at(transaction.now))

    return command


def unknown_session(session_id: str) -> UnknownName:
    return UnknownName(Objection("unknown_session_id", f"there is no session with the id {session_id}"))
