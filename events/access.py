"""Facts about API keys. Stream: `key-<key_id>`."""

from datetime import datetime

from events.facts import Fact
from events.values import ProjectId, ServiceAccountId


# `omit_defaults`: a key without limits is stored in the bytes of the first release.
class ApiKeyIssued(Fact, frozen=True, omit_defaults=True):
    """An API key was issued. The key itself is shown once and never stored; only its SHA-256 (hex) is."""

    key_id: str
    """Public identifier of the key in events and logs; not a secret."""
    name: str
    """Display name of the key's owner."""
    key_sha256: str
    """SHA-256 of the key, in hexadecimal."""
    role: str | None = None
    """Role that the key grants, such as `admin`; absent for a key of a service account, because the role is then that
    of the account."""
    projects: tuple[ProjectId, ...] = ()
    """Projects that the key is limited to; empty: all."""
    scopes: tuple[str, ...] = ()
    """Scopes that the key is limited to, such as `allocations:read`; empty: all scopes of its role."""
    expires_at: datetime | None = None
    """Time from which the key is refused; absent if it does not expire."""
    replaces: str | None = None
    """Identifier of the key that this key replaces (rotation); both keys have the same role, projects and scopes.
    Absent for a key that replaces none."""
    service_account: ServiceAccountId | None = None
    """Service account that is the actor of requests with this key. Role, projects and scopes are those of the account
    at the time of each request. Absent for a key with a role of its own."""


class ApiKeyReplaced(Fact, frozen=True):
    """A rotation issued a successor of an API key. The replaced key is still accepted until `expires_at`."""

    key_id: str
    """Identifier of the replaced key."""
    successor: str
    """Identifier of the new key."""
    expires_at: datetime
    """Time from which the replaced key is refused."""


class ApiKeyRevoked(Fact, frozen=True):
    """An API key was revoked: it is refused from now on."""

    key_id: str
    """Identifier of the revoked key."""
    reason: str
    """Reason that the administrator gave."""


AccessFact = ApiKeyIssued | ApiKeyReplaced | ApiKeyRevoked
