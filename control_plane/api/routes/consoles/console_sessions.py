"""`/v1/console-sessions`: sessions of admins on the serial ports and displays of slices, and their tickets (ING-5); and
the tickets of terminals of callers (ING-6), which the SSH gateway takes.

A ticket is accepted once, within 30 seconds, from the caller and the origin that it was made for. The connection itself
is a WebSocket (`control_plane.api.consoles.sockets`), which uses the route `connect` of this module.
"""

import secrets
from datetime import UTC, datetime
from typing import Annotated, Final, Literal
from uuid import UUID

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from control_plane.api.requests.access import (
    NODES,
    AuthenticatedRoute,
    Caller,
    CallingNode,
    access,
    credential_of,
)
from control_plane.api.requests.bodies import ReasonOnly
from control_plane.api.requests.commands import execute, execute_with_secret
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import origin_of, plane_of
from control_plane.api.routes.allocations import own_allocation
from control_plane.commands.consoles.session_commands import (
    accepted,
    cut_console,
    request_console,
    request_terminal,
    use_ticket,
)
from control_plane.database import reading
from control_plane.decisions.access import Scope
from control_plane.decisions.refusals import Conflict, Objection, UnknownName
from control_plane.identity.api_keys import digest
from control_plane.queues.node_streams import take_request
from control_plane.work import consoles
from control_plane.work.consoles import TicketKind
from events.consoles.facts import ConsoleRequested
from events.values import ConsoleId, InvalidValue, console_id

router = APIRouter(prefix="/v1", tags=["consoles"], responses=PROBLEMS, route_class=AuthenticatedRoute)
_ORIGIN: Final = r"^https?://[A-Za-z0-9.\[\]:-]{1,255}$"
Origin = Annotated[str | None, Field(pattern=_ORIGIN)]


class NewConsole(BaseModel):
    """A session on the serial port or the display (`graphics`) of slot number `slot`, for a page of `origin`; null: a
    program without origin. A display is open in one session at a time, unless a further session is `shared`.
    """

    model_config = {"extra": "forbid"}

    slot: Annotated[int, Field(ge=0, le=63, strict=True)] = 0
    origin: Origin = None
    kind: TicketKind = "serial"
    shared: Annotated[bool, Field(strict=True)] = False


class Ticket(BaseModel):
    """The ticket of a console session, and the origin of the page that presents it."""

    model_config = {"extra": "forbid"}

    ticket: Annotated[str, Field(min_length=1, max_length=256)]
    origin: Annotated[str | None, Field(max_length=300)] = None


class ConsoleTicket(BaseModel):
    """A new console session. `ticket` opens it once; only this response contains the ticket."""

    id: str
    allocation_id: str
    slot_id: str
    node_id: str
    kind: str
    actor: str
    origin: str | None
    ticket_expires_at: datetime
    path: str
    """Path of the WebSocket that takes the ticket."""
    ticket: str


class NewTerminal(BaseModel):
    """A terminal in slot number `slot`, for a page of `origin`."""

    model_config = {"extra": "forbid"}

    slot: Annotated[int, Field(ge=0, le=63, strict=True)] = 0
    origin: Annotated[str, Field(pattern=_ORIGIN)]


class TerminalTicket(BaseModel):
    """A new terminal. `ticket` opens it once; only this response contains the ticket."""

    id: str
    allocation_id: str
    slot_id: str
    node_id: str
    actor: str
    origin: str
    ticket_expires_at: datetime
    url: str
    """URL of the WebSocket that takes the ticket."""
    ticket: str


class ConsoleView(BaseModel):
    """An open console session."""

    id: str
    allocation_id: str
    slot_id: str
    node_id: str
    kind: str
    actor: str
    origin: str | None
    state: Literal["connecting", "connected"]


class ConsoleList(BaseModel):
    """The open console sessions, oldest first."""

    items: list[ConsoleView]


class CutConsole(BaseModel):
    """A console session that was cut: it ends within a second."""

    id: str


class Connecting(BaseModel):
    """A console session of which the ticket was accepted."""

    id: str
    stream_id: UUID
    kind: str


@router.post(
    "/allocations/{allocation}/console-sessions", status_code=201, openapi_extra=access(Scope.FLEET_WRITE)
)
async def create(request: Request, principal: Caller, allocation: str, body: NewConsole) -> ConsoleTicket:
    """Request a session on the serial port or the display of a slice. The ticket in the response is accepted once,
    within 30 seconds, from the same caller and from `origin`; only a hash of it is stored.
    """
    name, ticket = await own_allocation(request, allocation), secrets.token_urlsafe(32)

    def render(fact: ConsoleRequested) -> str:
        assert fact.ticket_expires_at is not None, "only sessions of the SSH gateway have no ticket"
        return ConsoleTicket(
            id=fact.console_id,
            allocation_id=fact.allocation_id,
            slot_id=fact.slot_id,
            node_id=fact.node_id,
            kind=fact.kind,
            actor=fact.actor,
            origin=fact.origin,
            ticket_expires_at=fact.ticket_expires_at,
            path=f"/v1/console-sessions/{fact.console_id}/stream",
            ticket="",
        ).model_dump_json()

    command = request_console(
        name,
        body.slot,
        digest(ticket),
        origin_of(request, principal),
        page_origin=body.origin,
        render=render,
        kind=body.kind,
        shared=body.shared,
    )
    return ConsoleTicket(**await execute_with_secret(request, command, {"ticket": ticket}))


@router.post(
    "/allocations/{allocation}/terminal-sessions",
    status_code=201,
    openapi_extra=access(Scope.ALLOCATIONS_WRITE),
)
async def create_terminal(
    request: Request, principal: Caller, allocation: str, body: NewTerminal
) -> TerminalTicket:
    """Request a terminal in a slice, in which the SSH gateway logs in. The allocation must have `gateway_access`. The
    ticket in the response is accepted once, within 30 seconds, from a page of `origin`; only a hash of it is stored.
    """
    address = plane_of(request).settings.terminal_address
    if address is None:
        reason = "this deployment has no terminals; use the SSH gateway or an ingress rule with ssh"
        raise Conflict(Objection("terminals_not_offered", reason))
    name, ticket = await own_allocation(request, allocation), secrets.token_urlsafe(32)

    def render(fact: ConsoleRequested) -> str:
        assert fact.ticket_expires_at is not None, "only sessions of `ssh -J` have no ticket"
        return TerminalTicket(
            id=fact.console_id,
            allocation_id=fact.allocation_id,
            slot_id=fact.slot_id,
            node_id=fact.node_id,
            actor=fact.actor,
            origin=body.origin,
            ticket_expires_at=fact.ticket_expires_at,
            url=f"{address}/terminals/{fact.console_id}",
            ticket="",
        ).model_dump_json()

    credential = credential_of(request)
    expires_at = credential.expires_at
    command = request_terminal(
        name,
        body.slot,
        digest(ticket),
        origin_of(request, principal),
        page_origin=body.origin,
        credential=credential.streams,
        expires_at=None if expires_at is None else datetime.fromtimestamp(expires_at, UTC),
        render=render,
    )
    made = await execute_with_secret(request, command, {"ticket": ticket})
    # If the credential ended while the ticket was made, the session would not notice it; the ticket is not returned.
    await credential.verify()
    return TerminalTicket(**made)


@router.get("/console-sessions", openapi_extra=access(Scope.FLEET_WRITE))
async def list_open(request: Request) -> ConsoleList:
    """List the open console sessions, oldest first."""
    async with reading(plane_of(request).engine) as conn:
        rows = await consoles.open_sessions(conn)
    return ConsoleList(
        items=[
            ConsoleView(
                id=row.console_id,
                allocation_id=row.allocation_id,
                slot_id=row.slot_id,
                node_id=row.node_id,
                kind=row.kind,
                actor=row.actor,
                origin=row.origin,
                state="connected" if row.state == "connected" else "connecting",
            )
            for row in rows
        ]
    )


@router.post("/console-sessions/{console}/cut", status_code=202, openapi_extra=access(Scope.FLEET_WRITE))
async def cut(request: Request, principal: Caller, console: str, body: ReasonOnly) -> CutConsole:
    """Cut a console session. Its connection ends within a second; an unused ticket becomes invalid at once."""
    name = _named(console)
    await execute(request, cut_console(name, body.reason, origin_of(request, principal)))
    return CutConsole(id=name)


@router.post("/console-sessions/{console}/connect", openapi_extra=access(Scope.FLEET_WRITE))
async def connect(request: Request, principal: Caller, console: str, body: Ticket) -> Connecting:
    """Use the ticket of a console session. The WebSocket of the session sends this request itself; a ticket that is
    used without the WebSocket is lost. Each refused ticket is recorded.
    """
    name = _named(console)
    command = use_ticket(name, digest(body.ticket), body.origin, origin_of(request, principal))
    # Without an idempotency key: a repeated request must not get the answer of the first one.
    used = accepted(await plane_of(request).handle(command))
    return Connecting(id=name, stream_id=used.stream_id, kind=used.kind)


@router.post("/agent/streams/{stream_id}/open", status_code=204, openapi_extra=NODES)
async def open_stream(request: Request, node: CallingNode, stream_id: UUID) -> None:
    """Open a requested stream. The WebSocket of the stream sends this request itself."""
    if not await take_request(plane_of(request).redis, node, stream_id):
        raise UnknownName(
            Objection(
                "unknown_stream", f"stream {stream_id} was not requested from node {node}, or is open already"
            )
        )


def _named(raw: str) -> ConsoleId:
    try:
        return console_id(raw)
    except InvalidValue:
        raise UnknownName(Objection("unknown_console", f"no console session has the id {raw!r}")) from None
