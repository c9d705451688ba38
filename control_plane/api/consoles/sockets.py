"""The WebSockets of the API: of callers with a ticket of a console session, and of nodes that open a requested stream.

A WebSocket is authorised by a request that it sends through the whole API in this process, with the credential of its
handshake: access checks, quotas and the access log apply as to any request. A browser cannot send an `Authorization`
header with a handshake, so below `/ui` the session cookie of the web console takes its place; the origin of the page
must then be the origin of the ticket.

The first message of a caller is text: `{"ticket": "..."}`. The first message to the caller is text as well, either
`{"state": "connected"}` or `{"state": "refused", "reasons": [...]}`. All further messages to and from the caller are
binary: output and input of the console. At the end, the caller gets the text `{"state": "ended", "reason": ...}`.
"""

import asyncio
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final
from uuid import UUID

import msgspec
import structlog
from fastapi import FastAPI
from starlette.requests import Request
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from control_plane.api.consoles.callers import WebSocketCaller
from control_plane.api.consoles.joining import CallerEnd, join_node
from control_plane.api.consoles.viewer_messages import ViewerMessages
from control_plane.web.calls import Answer, Api
from control_plane.web.cookies import ROOT, SESSION
from events.values import NodeId, console_id
from tasks.streams import MAX_MESSAGE

log = structlog.get_logger()
MOST_BYTES: Final = 4 * MAX_MESSAGE
"""Maximum size of a message on a WebSocket; the server closes a connection with a larger one."""
_TICKET_SECONDS: Final = 5.0
_CALLER: Final = re.compile(rf"(/v1|{ROOT})/console-sessions/(con-[0-9a-z]{{26}})/stream")
_NODE: Final = re.compile(r"/v1/agent/streams/([0-9a-f-]{36})")
_REFUSED: Final = 4403
_ENDED: Final = 1000


class _First(msgspec.Struct):
    """First message of a caller."""

    ticket: str


class Sockets:
    """ASGI application that serves the WebSockets, and passes every other request to the API."""

    def __init__(self, app: FastAPI) -> None:
        self._app, self._api = app, Api(app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await self._app(scope, receive, send)
            return
        socket = WebSocket(scope, receive, send)
        if found := _CALLER.fullmatch(scope["path"]):
            await self._caller(socket, found[2], from_page=found[1] == ROOT)
        elif found := _NODE.fullmatch(scope["path"]):
            await self._node(socket, found[1])
        else:
            await socket.close()

    async def _caller(self, socket: WebSocket, name: str, *, from_page: bool) -> None:
        secret = socket.cookies.get(SESSION) if from_page else _bearer(socket)
        await socket.accept()
        try:
            ticket = await asyncio.wait_for(_ticket(socket), _TICKET_SECONDS)
        except (TimeoutError, ValueError, WebSocketDisconnect):
            await _end(socket, {"state": "refused", "reasons": [_reason("ticket_missing")]}, _REFUSED)
            return
        body = {"ticket": ticket, "origin": socket.headers.get("origin")}
        answer = await self._ask(socket, secret or "", f"/v1/console-sessions/{name}/connect", body)
        if not answer.is_success:
            await _end(socket, {"state": "refused", "reasons": answer.json["reasons"]}, _REFUSED)
            return
        console = console_id(name)
        viewer, state = ViewerMessages() if answer.json["kind"] == "graphics" else None, self._app.state
        caller = WebSocketCaller(socket, answer.state["credential"], viewer)
        joined = CallerEnd(state.plane, state.keys, caller, console, UUID(answer.json["stream_id"]))
        end = await joined.run()
        await _end(socket, {"state": "ended", "reason": {"code": end.code, "message": end.message}}, _ENDED)

    async def _node(self, socket: WebSocket, stream: str) -> None:
        bearer = _bearer(socket) or ""
        answer = await self._ask(socket, bearer, f"/v1/agent/streams/{stream}/open", None)
        if not answer.is_success:
            # Closed before it was accepted: the handshake is answered with 403.
            await socket.close()
            return
        await socket.accept()
        node = NodeId(bearer.partition(":")[0])
        await join_node(self._app.state.plane, socket, UUID(stream), node)
        await _end(socket, None, _ENDED)

    async def _ask(self, socket: WebSocket, secret: str, path: str, body: object) -> Answer:
        scheme = "https" if socket.scope["scheme"] == "wss" else "http"
        page = Request({**socket.scope, "type": "http", "method": "POST", "scheme": scheme})
        return await self._api.call(page, secret, "POST", path, body=body)


def _bearer(socket: WebSocket) -> str | None:
    scheme, _, secret = socket.headers.get("authorization", "").partition(" ")
    return secret if scheme.lower() == "bearer" else None


async def _ticket(socket: WebSocket) -> str:
    """Return the ticket in the first message of a caller. Raises `ValueError`, `WebSocketDisconnect`."""
    try:
        return msgspec.json.decode(await socket.receive_text(), type=_First).ticket[:256]
    except (KeyError, msgspec.DecodeError):
        raise ValueError("the first message has no ticket") from None


def _reason(code: str) -> dict[str, Any]:
    message = 'the first message must be a text such as {"ticket": "..."}, within five seconds'
    return {"code": code, "message": message, "field": None, "parameter": None}


async def _end(socket: WebSocket, message: Mapping[str, Any] | None, code: int) -> None:
    """Send a last message and close the connection, unless the client has closed it."""
    with suppress(WebSocketDisconnect, RuntimeError, OSError):
        if socket.application_state is WebSocketState.CONNECTED:
            if message is not None:
                await socket.send_text(json.dumps(message))
            await socket.close(code)
