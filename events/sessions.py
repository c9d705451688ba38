"""Facts about sessions of callers. Stream: `session-<session_id>`.

Sessions of nodes are of another kind and have no events.
"""

from datetime import datetime

from events.facts import Fact
from events.values import ProjectId, SessionId


class SessionStarted(Fact, frozen=True, omit_defaults=True):
    """A caller started a session with another credential. The secret is shown once and never stored; only its SHA-256
    (hex) is."""

    session_id: SessionId
    """Public identifier of the session in events and logs; not a secret."""
    actor: str
    """Caller that started the session: requests with the session have the same actor."""
    credential: str
    """Id of the API key or token that the caller sent, as in the access log."""
    secret_sha256: str
    """SHA-256 of the session's secret, in hexadecimal."""
    label: str
    """What the session is for, in the words of the caller."""
    started_at: datetime
    """Time at which the session started."""
    expires_at: datetime
    """Time from which the session is refused."""
    idle_seconds: int
    """Idle timeout in seconds: the session is refused after it was not used for this time."""
    token_issued_at: datetime | None = None
    """Earliest time at which the token may have been issued, by the clock of the control plane: a later revocation of
    the actor ends the session. Absent for a session of an API key, which ends with the key."""
    role: str | None = None
    """Role that the token granted; absent for a session of an API key, which has the role of the key at each
    request."""
    projects: tuple[ProjectId, ...] = ()
    """Projects that the token was limited to; empty: all, or those of the API key."""
    scopes: tuple[str, ...] = ()
    """Scopes that the token was limited to; empty: all scopes of its role, or those of the API key."""


class SessionEnded(Fact, frozen=True):
    """A session was ended by its caller or by an administrator: it is refused from now on."""

    session_id: SessionId
    """Identifier of the ended session."""
    reason: str
    """Reason for which the caller or the administrator ended the session."""


SessionFact = SessionStarted | SessionEnded
