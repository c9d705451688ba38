"""The WebSockets of terminals: the browser presents the ticket that its caller got from the API, and then uses a shell
of the slice (ING-6).

The first message of the browser is text: `{"ticket": "...", "columns": 80, "rows": 24}`. The answer is text as well:
`{"state": "connected"}`, or `{"state": "refused", "reasons": [...]}`. All further messages to the browser are binary:
output of the shell. The browser sends input as bytes, and the size of the terminal, when it changes, as text. At the
end, it gets the text `{"state": "ended", "reason": ...}`.

The listener takes no other credential, in particular no cookie: the ticket is a secret that only the caller got, for a
page of one origin.
"""

import asyncio
import json
import re
import ssl
from collections.abc import Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from ipaddress import ip_address
from socket import socket as Socket  # noqa: N812 (a class)
from typing import Any, Final, Protocol

import msgspec
import structlog
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol

from control_plane.api.audit.sources import network_of
from control_plane.api.consoles.joining import CallerEnd
from control_plane.commands.consoles.session_commands import (
    AcceptedTicket,
    accepted,
    record_end,
    use_terminal_ticket,
)
from control_plane.decisions.refusals import Refused
from control_plane.identity.api_keys import digest
from control_plane.identity.gateway_keys import gateway_key
from control_plane.identity.sealing import OrderKeys
from control_plane.origin import Origin
from control_plane.outage import DATABASE_UNAVAILABLE
from control_plane.ssh_gateway.authorisation import Authorisation
from control_plane.ssh_gateway.limits import PROXIES, Limits, TooManyOpenings
from control_plane.ssh_gateway.terminal import InvalidMessage, Login, Size, TerminalCaller, decoded
from control_plane.wiring import Plane
from events.facts import Reason
from events.values import ConsoleId, console_id, new_uuid
from tasks.streams import MAX_MESSAGE

log = structlog.get_logger()
ACTOR: Final = "system:ssh-gateway"
"""Actor of the refusals of tickets, because a refused ticket proves no caller."""
_MOST_BYTES: Final = 4 * MAX_MESSAGE
_MOST_QUEUED: Final = 4
_HANDSHAKE_SECONDS: Final = 20.0
_TLS_SECONDS: Final = 5.0
"""Time for the TLS handshake. A connection is counted after it."""
_TICKET_SECONDS: Final = 5.0
_PATH: Final = re.compile(r"/terminals/(con-[0-9a-z]{26})")
_REFUSED, _ENDED = 4403, 1000
_VIOLATIONS: Final = (CloseCode.PROTOCOL_ERROR, CloseCode.INVALID_DATA, CloseCode.MESSAGE_TOO_BIG)
"""Codes with which the library closes a WebSocket if the browser violates the protocol (RFC 6455 section 7.4.1)."""


class _First(msgspec.Struct, frozen=True):
    """First message of a browser."""

    ticket: str
    columns: int = 80
    rows: int = 24


class Sessions(Protocol):
    """Interface to what all terminals and SSH connections of a gateway process share: its connections to the servers,
    its keys and limits, and the open terminals.
    """

    plane: Plane
    keys: OrderKeys
    limits: Limits
    terminals: set[TerminalCaller]

    def start(self, run: Coroutine[Any, Any, Reason]) -> asyncio.Task[Reason]:
        """Run a session in a new task. The gateway waits for this task when it stops."""
        ...


class Refusal(Exception):
    """A request for a terminal is refused with the reason code `code`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Browser(ServerConnection):
    """A WebSocket connection of a browser or of a trusted proxy. It counts towards the limits as soon as it is
    accepted, because its WebSocket handshake may never be complete.
    """

    def __init__(self, gateway: Sessions, protocol: ServerProtocol, server: Server, **options: Any) -> None:
        super().__init__(protocol, server, **options)
        self._limits, self._trusted = gateway.limits, gateway.plane.settings.trusted_proxies
        self._counted = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        peer = str(self.remote_address[0])
        is_proxy = any(ip_address(peer) in network for network in self._trusted)
        self._counted = PROXIES if is_proxy else network_of(peer)
        if not self._limits.connect(self._counted):
            log.warning("terminal_connection_refused", source=self._counted)
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._limits.disconnect(self._counted)
        super().connection_lost(exc)

    @property
    def source(self) -> str:
        """Address of the browser, which a trusted proxy names."""
        peer = str(self.remote_address[0])
        assert self.request is not None, "the WebSocket handshake must be complete"
        named = ",".join(self.request.headers.get_all("X-Forwarded-For")).split(",")
        while any(ip_address(peer) in network for network in self._trusted) and named and named[-1].strip():
            try:
                peer = str(ip_address(named.pop().strip()))
            except ValueError:
                break
        return network_of(peer)

    def count_source(self) -> bool:
        """Count this connection for the address of the browser from now on, and return whether that address is within
        its limit.
        """
        self._limits.disconnect(self._counted)
        self._counted = self.source
        return self._limits.connect(self._counted)


class Terminals:
    """The terminals of a process of the gateway."""

    def __init__(self, gateway: Sessions) -> None:
        self._gateway = gateway

    def listen(self, listening: Socket, secure: ssl.SSLContext | None) -> AbstractAsyncContextManager[Server]:
        """Accept WebSockets on a socket while the context is open."""
        return serve(
            self._connected,
            sock=listening,
            ssl=secure,
            process_request=_refuse_other_paths,
            compression=None,
            max_size=_MOST_BYTES,
            max_queue=_MOST_QUEUED,
            open_timeout=_HANDSHAKE_SECONDS,
            ssl_handshake_timeout=None if secure is None else _TLS_SECONDS,
            server_header=None,
            create_connection=partial(_Browser, self._gateway),  # type: ignore[arg-type]  # documented as a factory
        )

    async def _connected(self, browser: ServerConnection) -> None:
        assert isinstance(browser, _Browser), "the listener must create connections of the type _Browser"
        source = browser.source
        if not browser.count_source():
            log.warning("terminal_connection_refused", source=source)
            await _end(browser, _refused("too_many_connections", "too many open connections; close one"))
            return
        try:
            await self._serve(browser, source)
        except ConnectionClosed as closed:
            log.info("terminal_connection_closed_before_its_ticket_arrived", source=source)
            if closed.sent is not None and closed.sent.code in _VIOLATIONS:
                self._gateway.limits.failed(source)

    async def _serve(self, browser: ServerConnection, source: str) -> None:
        limits = self._gateway.limits
        if seconds := limits.blocked_seconds(source):
            message = f"too many refused tickets; try again in {seconds} s"
            await _end(browser, _refused("too_many_failed_attempts", message))
            return
        try:
            first = await _first_message(browser)
            caller, session = await self._session(browser, first, source)
        except Refusal as refusal:
            limits.failed(source)
            await _end(browser, _refused(refusal.code, str(refusal)))
            return
        except DATABASE_UNAVAILABLE:
            message = "the control plane does not answer; try again later"
            await _end(browser, _refused("database_unavailable", message))
            return
        self._gateway.terminals.add(caller)
        try:
            reason = await self._gateway.start(session.run())
        finally:
            self._gateway.terminals.discard(caller)
            await caller.close()
        log.info("browser_terminal_ended", actor=caller.actor, code=reason.code)
        ended = {"state": "ended", "reason": {"code": reason.code, "message": reason.message}}
        await _end(browser, ended, _ENDED)

    async def _session(
        self, browser: ServerConnection, first: _First, source: str
    ) -> tuple[TerminalCaller, CallerEnd]:
        """Use a ticket, and return its caller and the session. Raises `Refusal`."""
        plane, console = self._gateway.plane, _console_of(browser)
        use = await self._use_ticket(browser, console, first.ticket, source)
        authorisation = Authorisation(plane.engine, use.allocation_id)
        permitted = await authorisation.permitted()
        key = gateway_key(use.allocation_id)
        if permitted is None or permitted.gateway_key is None:
            reason = Reason("slice_not_on_node", "the allocation is no longer active")
            await plane.handle(
                record_end(console, reason, Origin(use.actor, f"terminal {console}", new_uuid()))
            )
            raise Refusal(reason.code, reason.message)
        size = Size(first.columns, first.rows)
        caller = TerminalCaller(browser, use.actor, authorisation, Login(permitted.user, key), size)
        return caller, CallerEnd(plane, self._gateway.keys, caller, console, use.stream_id)

    async def _use_ticket(
        self, browser: ServerConnection, console: ConsoleId, ticket: str, source: str
    ) -> AcceptedTicket:
        assert browser.request is not None, "the WebSocket handshake must be complete"
        page = browser.request.headers.get("Origin")
        origin = Origin(ACTOR, f"ticket of a terminal from {source}", new_uuid())
        command = use_terminal_ticket(console, digest(ticket[:256]), page and page[:300], origin)
        try:
            async with self._gateway.limits.opening(console):
                return accepted(await self._gateway.plane.handle(command))
        except TooManyOpenings:
            raise Refusal("too_many_connections", "the ticket is being used; try again later") from None
        except Refused as refused:
            objection = refused.objections[0]
            log.info("terminal_ticket_refused", source=source, console_id=console, code=objection.code)
            raise Refusal(objection.code, objection.message) from None


def _refuse_other_paths(browser: ServerConnection, request: Request) -> Response | None:
    if _PATH.fullmatch(request.path):
        return None
    return browser.respond(404, "this address accepts only the WebSockets of terminals\n")


def _console_of(browser: ServerConnection) -> ConsoleId:
    assert browser.request is not None, "the WebSocket handshake must be complete"
    found = _PATH.fullmatch(browser.request.path)
    assert found is not None, "_refuse_other_paths must have refused any other path"
    return console_id(found[1])


async def _first_message(browser: ServerConnection) -> _First:
    """Return the first message of a browser. Raises `Refusal`, `ConnectionClosed`."""
    try:
        return decoded(await asyncio.wait_for(browser.recv(), _TICKET_SECONDS), _First)
    except (TimeoutError, InvalidMessage):
        message = 'the first message must be a text such as {"ticket": "..."}, within five seconds'
        raise Refusal("ticket_missing", message) from None


def _refused(code: str, message: str) -> Mapping[str, Any]:
    reason = {"code": code, "message": message, "field": None, "parameter": None}
    return {"state": "refused", "reasons": [reason]}


async def _end(browser: ServerConnection, message: Mapping[str, Any], code: int = _REFUSED) -> None:
    """Send a last message and close the connection, unless the browser has closed it."""
    with suppress(ConnectionClosed):
        await browser.send(json.dumps(message))
    await browser.close(code)
