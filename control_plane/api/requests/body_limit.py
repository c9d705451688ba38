"""Limits of the size of a request body, enforced before the caller is authenticated."""

from http import HTTPStatus
from typing import Final

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BYTES: Final = 256 * 1024
"""Maximum size of a body for the routes of callers.

The largest valid body has about 200 KiB: a `bodies.CreateAllocation` with SSH keys and labels of the maximum size, of
which each character outside ASCII is escaped.
"""
MOST_REPORTED_BYTES: Final = 8 * 1024 * 1024
"""Maximum size of a body for the routes with which an enrolled node sends its state.

Twice the size of the largest report of a node; a node sends several reports at once only if they are small.
"""
MOST_ENROLMENT_BYTES: Final = 64 * 1024
"""Maximum size of a body for the other routes of nodes: enrolments, sessions and heartbeats.

They validate the body before they verify the token, the proof or the credential, so a body must be cheap to validate. A
valid one has less than 10 KiB.
"""
_OF_NODES: Final = "/v1/agent/"
_REPORTED: Final = frozenset(
    f"{_OF_NODES}{each}" for each in ("reports", "progress", "desired-state", "serial-logs")
)


def most_bytes(path: str) -> int:
    """Return the maximum size of the body of a request for a path."""
    if path in _REPORTED:
        return MOST_REPORTED_BYTES
    return MOST_ENROLMENT_BYTES if path.startswith(_OF_NODES) else MOST_BYTES


class Bounded:
    """Middleware that refuses a request with 413 as soon as more of its body has arrived than its route permits."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        left = most = most_bytes(scope["path"])

        async def bounded() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                reason = f"the body has more than {most} bytes, the limit of this route"
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason)
            return message

        await self._app(scope, bounded, send)
