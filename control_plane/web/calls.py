"""Requests of the web console to the API, inside the process of the API.

Each call passes the complete API application with the credential of the user, from the address of the browser: access
checks, quotas, idempotency keys and the access log apply as to a request over the network. The console has no other
source of data.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

Query = Mapping[str, str | int | Sequence[str] | None]
_CONTINUED: Final = ("accept-language", "last-event-id", "traceparent", "user-agent")
"""Headers of the browser's request that a streamed request keeps."""


@dataclass(frozen=True)
class Answer:
    """Response of the API. `json` is its body; every response of the API to the console is JSON. `state` is what the
    API has noted about the request, such as the credential that it verified.
    """

    status: int
    body: bytes
    state: Mapping[str, Any]

    @property
    def is_success(self) -> bool:
        return HTTPStatus.OK <= self.status < HTTPStatus.MULTIPLE_CHOICES

    @cached_property
    def json(self) -> Any:
        return json.loads(self.body)


class Refusal(Exception):
    """The API refused a request. `problem` is the problem document (RFC 9457) with title, reasons and hint."""

    def __init__(self, problem: Mapping[str, Any]) -> None:
        super().__init__(f"{problem['status']} {problem['title']}")
        self.problem = problem
        self.status: int = problem["status"]


def path_of(*segments: str) -> str:
    """Return an API path of these segments, such as `/v1/nodes/n1`; without segments, `/v1`. No segment can
    leave its place in the path.
    """
    return "/".join(["/v1", *(quote(each, safe="") for each in segments)])


def url_of(path: str, query: Query) -> str:
    """Return the path with a query string of those parameters that have a value."""
    given = urlencode(
        {name: value for name, value in query.items() if value not in (None, "", [])}, doseq=True
    )
    return f"{path}?{given}" if given else path


class Api:
    """The API application of this process."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def call(
        self,
        page: Request,
        secret: str,
        method: str,
        url: str,
        *,
        body: object = None,
        idempotency_key: str | None = None,
    ) -> Answer:
        """Send a request on behalf of the user that requested `page`, with the user's credential `secret`."""
        headers = [_authorization(secret)]
        if body is not None:
            headers.append((b"content-type", b"application/json"))
        if idempotency_key is not None:
            headers.append((b"idempotency-key", idempotency_key.encode()))
        content = b"" if body is None else json.dumps(body).encode()
        exchange = _Exchange(content)
        scope = _scope(page.scope, method, url, headers)
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except Exception:
            # The API answers a failure with 500, logs it, and raises the exception again for the server.
            if exchange.status is None:
                raise
        assert exchange.status is not None, "the API must answer every request"
        return Answer(exchange.status, b"".join(exchange.pieces), scope["state"])

    async def stream(self, page: Request, secret: str, url: str, send: Send, receive: Receive) -> None:
        """Pass the response of a GET request to the browser as it is produced, such as a watch."""
        kept = [(name, value) for name, value in page.scope["headers"] if name.decode() in _CONTINUED]
        await self._app(_scope(page.scope, "GET", url, [_authorization(secret), *kept]), receive, send)


def _authorization(secret: str) -> tuple[bytes, bytes]:
    return b"authorization", f"Bearer {secret}".encode()


def _scope(page: Scope, method: str, url: str, headers: Sequence[tuple[bytes, bytes]]) -> Scope:
    """Return the ASGI scope of a request to the API from the browser that requested `page`."""
    path, _, query = url.partition("?")
    return {
        "type": "http",
        "asgi": page["asgi"],
        "http_version": page["http_version"],
        "method": method,
        "scheme": page["scheme"],
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", Request(page).headers.get("host", "").encode()), *headers],
        "client": page["client"],
        "server": page["server"],
        "state": {},
    }


class _Exchange:
    """The messages of one request: its body, and the response."""

    def __init__(self, content: bytes) -> None:
        self._content: bytes | None = content
        self.status: int | None = None
        self.pieces: list[bytes] = []

    async def receive(self) -> Message:
        if self._content is None:
            # The console waits for the response: the client of this request never disconnects.
            await asyncio.Event().wait()
        content, self._content = self._content, None
        return {"type": "http.request", "body": content, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.pieces.append(message.get("body", b""))
