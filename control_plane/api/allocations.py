"""`/v1/allocations`: create, look, stop and start, release."""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from control_plane.api.access import Admin
from control_plane.api.allocation_views import AllocationView, allocation_view
from control_plane.api.at import At, say, travel_of
from control_plane.api.bodies import CreateAllocation
from control_plane.api.conditions import with_conditions
from control_plane.api.pages import Cursor, Limit, Page, position_of
from control_plane.api.problems import PROBLEMS
from control_plane.api.state import key_of, origin_of, plane_of
from control_plane.api.then import allocations_then, told
from control_plane.commands.allocations import release_allocation, start_allocation, stop_allocation
from control_plane.commands.placing import create_allocation
from control_plane.decisions.refusals import Malformed, Objection, UnknownName
from control_plane.handle import Command
from control_plane.histories import allocation_history, histories
from control_plane.origin import Origin
from events.allocations import AllocationFact, AllocationRequested
from events.envelope import Recorded
from events.facts import Reason
from events.store import refuse_unreadable
from events.values import (
    AllocationId,
    ImageName,
    InvalidValue,
    NodeId,
    Position,
    ProjectId,
    SkuName,
    SshPublicKey,
    allocation_id,
    allocation_of,
    correlation_of,
    ingress_of,
    new_uuid,
    project_id,
    stream_of_allocation,
)
from read_models import allocations
from read_models.keys import Principal

router = APIRouter(prefix="/v1/allocations", tags=["allocations"], responses=PROBLEMS)
JSON = "application/json"


@router.post("", status_code=202, response_model=AllocationView)
async def create(request: Request, principal: Admin, body: CreateAllocation) -> Response:
    """Ask for slices. The answer comes at once, with the slots that were claimed; watch it become active."""
    correlation = new_uuid()
    asked = _request(allocation_of(correlation), body)
    origin = origin_of(request, principal, correlation_id=correlation, project=asked.project)
    plane = plane_of(request)
    ways = [(ingress_of(new_uuid()), each.wish) for each in body.ingress]
    settings = plane.settings
    check = settings.offered[asked.image]
    command = create_allocation(
        asked,
        check,
        ways,
        origin,
        _render,
        silent_after=settings.silent_after,
        simulated_allowed=settings.place_on_simulated_nodes,
    )
    answer = await plane.handle(command, await key_of(request, principal))
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
        node=None if body.node is None else NodeId(body.node),
        replace_on_failure=body.replace_on_failure,
    )


def _render(facts: tuple[AllocationFact, ...], now: datetime) -> str:
    # Placed just now, and so on a node whose heartbeat is on time.
    return allocation_view(facts, now).model_copy(update={"conditions": []}).model_dump_json()


@router.get("")
async def list_allocations(
    request: Request,
    response: Response,
    _principal: Admin,
    *,
    project: Annotated[str | None, Query(max_length=63)] = None,
    at: At = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[AllocationView]:
    """Allocations, the newest first: as they stand now, or those that had been asked for then, as they stood."""
    before = position_of(cursor)
    only = None if project is None else _project(project)
    if at is not None:
        async with travel_of(request).to(at, known_to="allocations") as (conn, [place]):
            end = Position(place.position + 1)
            before = end if before is None else min(before, end)
            found = await allocations.page(conn, project=only, before=before, limit=limit)
            views = await allocations_then(conn, [each for _position, each in found], place.position)
        say(response, place)
        return _page(views, found, limit)
    async with plane_of(request).engine.connect() as conn:
        found = await allocations.page(conn, project=only, before=before, limit=limit)
        streams = [stream_of_allocation(each) for _position, each in found]
        stories = await histories(conn, streams)
        folded = [told(refuse_unreadable(stories[stream])) for stream in streams]
        views = await with_conditions(conn, folded, plane_of(request).settings.silent_after)
    return _page(views, found, limit)


def _page(
    views: list[AllocationView], found: list[tuple[Position, AllocationId]], limit: int
) -> Page[AllocationView]:
    return Page(items=views, next_cursor=str(found[-1][0]) if len(found) == limit else None)


def _project(raw: str) -> ProjectId:
    try:
        return project_id(raw)
    except InvalidValue as invalid:
        raise Malformed(Objection("bad_project", str(invalid))) from None


@router.get("/{allocation}")
async def show(
    request: Request, response: Response, _principal: Admin, allocation: str, at: At = None
) -> AllocationView:
    """One allocation, as it stands now or stood then."""
    if at is None:
        return await shown(request, allocation)
    name = allocation_named(allocation)
    async with travel_of(request).to(at) as (conn, [place]):
        then = await allocations_then(conn, [name], place.position)
    if not then:
        why = f"there was no allocation {name} at position {place.position}"
        raise UnknownName(Objection("unknown_allocation", why))
    say(response, place)
    return then[0]


def allocation_named(raw: str) -> AllocationId:
    """Raises `UnknownName` for what names no allocation."""
    try:
        return allocation_id(raw)
    except InvalidValue:
        raise _unknown(raw) from None


def _unknown(raw: str) -> UnknownName:
    return UnknownName(Objection("unknown_allocation", f"there is no allocation {raw}"))


async def shown(request: Request, allocation: str) -> AllocationView:
    """As it stands now. Raises `UnknownName`."""
    view = told(await _history(request, allocation))
    plane = plane_of(request)
    async with plane.engine.connect() as conn:
        [conditioned] = await with_conditions(conn, [view], plane.settings.silent_after)
    return conditioned


async def _history(request: Request, raw: str) -> tuple[Recorded[AllocationFact], ...]:
    name = allocation_named(raw)
    async with plane_of(request).engine.connect() as conn:
        history = await allocation_history(conn, name)
    if not history:
        raise _unknown(raw)
    return history


@router.post("/{allocation}/stop", status_code=202)
async def stop(request: Request, principal: Admin, allocation: str) -> AllocationView:
    """Switch the slices off: nothing of them can be reached, and slots, addresses and the lease stay."""
    reason = Reason("stopped_by_caller", f"a stop was asked for by {principal.actor}")
    return await _told_to(stop_allocation, request, principal, allocation, reason)


@router.post("/{allocation}/start", status_code=202)
async def start(request: Request, principal: Admin, allocation: str) -> AllocationView:
    """Switch the slices of a stopped allocation on again, in the same slots. Watch it become active."""
    reason = Reason("started_by_caller", f"a start was asked for by {principal.actor}")
    return await _told_to(start_allocation, request, principal, allocation, reason)


@router.delete("/{allocation}", status_code=202)
async def release(request: Request, principal: Admin, allocation: str) -> AllocationView:
    """Give the slots back. They can be claimed again once their node proved them empty."""
    reason = Reason("released_by_caller", f"release was asked for by {principal.actor}")
    return await _told_to(release_allocation, request, principal, allocation, reason)


async def _told_to(
    command: Callable[[AllocationId, Origin, Reason], Command],
    request: Request,
    principal: Principal,
    allocation: str,
    reason: Reason,
) -> AllocationView:
    """What became of the allocation by the command."""
    asked = (await _history(request, allocation))[0].fact
    assert isinstance(asked, AllocationRequested)
    name = asked.allocation_id
    origin = origin_of(request, principal, correlation_id=correlation_of(name), project=asked.project)
    await plane_of(request).handle(command(name, origin, reason), await key_of(request, principal))
    return await shown(request, allocation)
