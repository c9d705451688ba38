"""The verified credential of a long-running request, such as a watch, which verifies the credential again while it
runs.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

from control_plane.decisions.access import Principal
from events.values import StreamId


class CredentialKind(StrEnum):
    """Kind of the credential of a caller."""

    KEY = "key"
    TOKEN = "token"  # noqa: S105  # the name of a kind
    SESSION = "session"


@dataclass(frozen=True, slots=True)
class HeldCredential:
    """A verified credential. It contains no secret. `id` names it in the access log.

    Everything that can end the credential early is an event of one of the `streams`: of the credential, and of what it
    depends on, such as the service account of an API key. `expires_at` is in seconds since 1970; None: the credential
    does not expire. `verify` verifies the credential again, and raises `Unauthorised` if it is no longer valid.

    A long-running request verifies its credential every `reverify_seconds`, which counts as a use; None: only when an
    event concerns the credential or when it expires. `issued_at` is the earliest time at which a token may have been
    issued, in seconds since 1970; None for other credentials.
    """

    principal: Principal
    kind: CredentialKind
    id: str
    streams: tuple[StreamId, ...]
    expires_at: float | None
    verify: Callable[[], Awaitable["HeldCredential"]]
    reverify_seconds: float | None = None
    issued_at: float | None = None
