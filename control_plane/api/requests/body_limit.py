"""Limits of the size of a request body, enforced before the caller is authenticated."""

from http import HTTPStatus
from typing import Final

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BYTES: Final = 256 * 1024
"""Maximum size of a body, except for the routes in `_OF_NODES`.

The largest valid body has about 200 KiB: a `bodies.CreateAllocation` with SSH keys and labels of the maximum size, of
which each character outside ASCII is escaped.
"""
MOST_BYTES_OF_NODES: Final = 8 * 1024 * 1024
"""Twice the size of the largest report of a node; a node sends several reports at once only if they are small."""
_OF_NODES: Final = frozenset({"/v1/agent/reports", "/v1/agent/progress", "/v1/agent/desired-state"})


class Bounded:
    """Middleware that refuses a request with 413 as soon as more of its body has arrived than its route permits."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        left = MOST_BYTES_OF_NODES if scope["path"] in _OF_NODES else MOST_BYTES

        async def bounded() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "Content Too Large")
            return message

        await self._app(scope, bounded, send)
