"""Response headers that dependencies and handlers set before the response exists. A refusal of the request gets them
too.
"""

from typing import Final

from fastapi import Request
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADERS: Final = "response_headers"
DOCUMENTATION: Final = "/docs"
_POLICY: Final = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content-Security-Policy of the documentation page. It prevents that the page loads anything from other servers or
sends anything to them.
"""


def set_header(request: Request, name: str, value: str) -> None:
    """Set a header of the response to this request, also if the request is refused later."""
    request.scope["state"].setdefault(_HEADERS, {})[name] = value


class ResponseHeaders:
    """Middleware that adds the headers of `set_header` to a response.

    It adds the header Content-Security-Policy to the documentation page.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(scope.get("state", {}).get(_HEADERS, {}))
                if scope.get("path") == DOCUMENTATION:
                    headers["Content-Security-Policy"] = _POLICY
            await send(message)

        await self._app(scope, receive, send_with_headers)
