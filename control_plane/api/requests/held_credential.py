"""The verified credential of a request that lasts, such as a watch, which verifies it again while it runs."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from control_plane.decisions.access import Principal
from events.values import StreamId


@dataclass(frozen=True, slots=True)
class HeldCredential:
    """A verified credential. It contains no secret.

    A revocation or a new expiry of the credential is an event of `stream`. `expires_at` is in seconds since 1970; None:
    the credential does not expire. `verify` verifies it again, and raises `Unauthorised`.
    """

    principal: Principal
    stream: StreamId
    expires_at: float | None
    verify: Callable[[], Awaitable["HeldCredential"]]
