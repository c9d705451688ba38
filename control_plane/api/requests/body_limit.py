"""Limit of the size of a request body, enforced before the caller is authenticated."""

from http import HTTPStatus
from typing import Final

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BYTES: Final = 8 * 1024 * 1024
"""Twice the size of the largest report of a node; a node sends several reports at once only if they are small."""


class Bounded:
    """Middleware that refuses a request with 413 as soon as more than `MOST_BYTES` of its body have arrived."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        left = MOST_BYTES

        async def bounded() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "Content Too Large")
            return message

        await self._app(scope, bounded if scope["type"] == "http" else receive, send)
