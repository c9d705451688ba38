"""The verified credential of a request that lasts, such as a watch, which verifies it again while it runs."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from control_plane.decisions.access import Principal
from events.values import StreamId


@dataclass(frozen=True, slots=True)
class HeldCredential:
    """A verified credential. It contains no secret.

    Everything that can end the credential early is an event of one of the `streams`: of the credential, and of what it
    depends on, such as the service account of an API key. `expires_at` is in seconds since 1970; None: the credential
    does not expire. `verify` verifies it again, and raises `Unauthorised`.
    """

    principal: Principal
    streams: tuple[StreamId, ...]
    expires_at: float | None
    verify: Callable[[], Awaitable["HeldCredential"]]
