"""`/v1/allocations`: create, look, watch, release."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from control_plane.api.access import Admin
from control_plane.api.bodies import CreateAllocation
from control_plane.api.pages import (
    Cursor,
    Limit,
    Page,
    event_page,
    event_stream,
    position_of,
    resume_after,
)
from control_plane.api.problems import PROBLEMS
from control_plane.api.state import feed_of, key_of, origin_of, plane_of
from control_plane.api.views import AllocationView, EventView, allocation_view
from control_plane.commands.allocations import create_allocation, release_allocation
from control_plane.decisions.refusals import Malformed, Objection, UnknownName
from control_plane.handle import ledger_connection
from control_plane.histories import allocation_history
from events.allocations import AllocationFact, AllocationRequested
from events.envelope import Recorded
from events.facts import Reason
from events.store import read_positions
from events.values import (
    AllocationId,
    ImageName,
    InvalidValue,
    Position,
    ProjectId,
    SkuName,
    SshPublicKey,
    allocation_id,
    allocation_of,
    correlation_of,
    new_uuid,
    project_id,
)
from read_models import allocations

router = APIRouter(prefix="/v1/allocations", tags=["allocations"], responses=PROBLEMS)
JSON = "application/json"


@router.post("", status_code=202, response_model=AllocationView)
async def create(request: Request, principal: Admin, body: CreateAllocation) -> Response:
    """Ask for slices. The answer comes at once, with the slots that were claimed; watch it become active."""
    correlation = new_uuid()
    asked = _request(allocation_of(correlation), body)
    origin = origin_of(request, principal, correlation_id=correlation, project=asked.project)
    answer = await plane_of(request).handle(
        create_allocation(asked, origin, _render), await key_of(request, principal)
    )
    created = AllocationView.model_validate_json(answer)
    return Response(answer, 202, {"Location": f"/v1/allocations/{created.id}"}, JSON)


def _request(allocation: AllocationId, body: CreateAllocation) -> AllocationRequested:
    return AllocationRequested(
        allocation_id=allocation,
        project=ProjectId(body.project),
        sku=SkuName(body.sku),
        network_mode=body.network_mode,
        image=ImageName(body.image),
        ssh_authorized_keys=tuple(SshPublicKey(key) for key in body.ssh_authorized_keys),
        lease_seconds=body.lease_seconds,
        slot_count=body.slot_count,
        labels=dict(body.labels),
    )


def _render(facts: tuple[AllocationFact, ...], now: datetime) -> str:
    return allocation_view(facts, now).model_dump_json()


@router.get("")
async def list_allocations(
    request: Request,
    _principal: Admin,
    project: Annotated[str | None, Query(max_length=63)] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[AllocationView]:
    """Allocations, the newest first."""
    before = position_of(cursor)
    only = None if project is None else _project(project)
    async with plane_of(request).engine.connect() as conn:
        found = await allocations.page(conn, project=only, before=before, limit=limit)
        views = [_view(await allocation_history(conn, each)) for _position, each in found]
    return Page(items=views, next_cursor=str(found[-1][0]) if len(found) == limit else None)


def _project(raw: str) -> ProjectId:
    try:
        return project_id(raw)
    except InvalidValue as invalid:
        raise Malformed(Objection("bad_project", str(invalid))) from None


def _view(history: tuple[Recorded[AllocationFact], ...]) -> AllocationView:
    return allocation_view(tuple(recorded.fact for recorded in history), history[0].cause.observed_at)


@router.get("/{allocation}")
async def show(request: Request, _principal: Admin, allocation: str) -> AllocationView:
    """One allocation, as it stands now."""
    return _view(await _history(request, allocation))


async def _history(request: Request, raw: str) -> tuple[Recorded[AllocationFact], ...]:
    unknown = UnknownName(Objection("unknown_allocation", f"there is no allocation {raw}"))
    try:
        name = allocation_id(raw)
    except InvalidValue:
        raise unknown from None
    async with plane_of(request).engine.connect() as conn:
        history = await allocation_history(conn, name)
    if not history:
        raise unknown
    return history


@router.delete("/{allocation}", status_code=202)
async def release(request: Request, principal: Admin, allocation: str) -> AllocationView:
    """Give the slots back. They can be claimed again once their node proved them empty."""
    history = await _history(request, allocation)
    asked = history[0].fact
    assert isinstance(asked, AllocationRequested)
    origin = origin_of(
        request,
        principal,
        correlation_id=correlation_of(asked.allocation_id),
        project=asked.project,
    )
    reason = Reason("released_by_caller", f"release was asked for by {principal.actor}")
    await plane_of(request).handle(release_allocation(asked.allocation_id, origin, reason))
    return _view(await _history(request, allocation))


@router.get("/{allocation}/events")
async def story(
    request: Request, _principal: Admin, allocation: str, cursor: Cursor = None, limit: Limit = 200
) -> Page[EventView]:
    """The whole story, oldest first: the allocation's own events and those of its slots that belong to it."""
    name = _name(await _history(request, allocation))
    after = position_of(cursor) or Position(0)
    async with plane_of(request).engine.connect() as conn:
        positions = await allocations.positions(conn, name, after=after, limit=limit)
        events = await read_positions(await ledger_connection(conn), positions)
    return event_page(tuple(events), limit)


def _name(history: tuple[Recorded[AllocationFact], ...]) -> AllocationId:
    return history[0].fact.allocation_id


@router.get(
    "/{allocation}/watch",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def watch(
    request: Request, _principal: Admin, allocation: str, after: Cursor = None
) -> StreamingResponse:
    """The story as it happens, from its beginning or after `Last-Event-ID`."""
    history = await _history(request, allocation)
    start = max(resume_after(request, after), Position(history[0].position - 1))
    return event_stream(feed_of(request).watch(Position(start), correlation_of(_name(history))))
