"""How much of a request's body is read, before anybody knows who sends it."""

from http import HTTPStatus
from typing import Final

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BYTES: Final = 8 * 1024 * 1024
"""Twice the largest report that a node can make: it sends several at once only where they are small."""


class Bounded:
    """Refuses a body as soon as more of it has come than is ever asked for (413)."""

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
