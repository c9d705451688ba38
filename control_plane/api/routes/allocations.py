"""`/v1/allocations`: create, list, show, stop, start and release allocations, and renew their leases."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, TypeVar

import msgspec
from fastapi import APIRouter, Query, Request, Response

from control_plane.api.catalogue.naming_route import NamingRoute
from control_plane.api.creation_route import CreationRoute
from control_plane.api.filters.allocations import Wanted
from control_plane.api.filters.scanning import filtered
from control_plane.api.requests.access import Caller, access, caller_of
from control_plane.api.requests.as_of import At, set_headers, travel_of
from control_plane.api.requests.bodies import CreateAllocation, RenewLease, ReportFault, WaitForCapacity
from control_plane.api.requests.commands import DryRun, dry, execute, execute_creation, try_out
from control_plane.api.requests.conditional import IF_MATCH, TAGGED, set_version
from control_plane.api.requests.pages import Cursor, Limit, Order, Page, position_of
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import origin_of, plane_of
from control_plane.api.views.allocation_views import AllocationView, SshGateway, allocation_view
from control_plane.api.views.conditions import with_conditions
from control_plane.api.views.past_views import allocations_then, view_of_history
from control_plane.api.views.placement_views import (
    ObjectionView,
    PlacementPreview,
    PlacementView,
    group_views,
    outlook_view,
    placement_view,
)
from control_plane.api.views.queue_views import with_queue
from control_plane.api.views.quota_views import exceeded_views
from control_plane.commands.allocations import (
    release_allocation,
    release_with_fault,
    renew_lease,
    start_allocation,
    stop_allocation,
)
from control_plane.commands.creating_together import Creation
from control_plane.commands.past_placements import explain_placement, newest_placement
from control_plane.commands.placement_request import NewAllocation, WaitOptions
from control_plane.commands.placing import create_allocation, preview_placement
from control_plane.commands.waiting import Placing
from control_plane.decisions.access import Principal, Role, Scope, project_of, within
from control_plane.decisions.placing.explanation import Group, Unplaced
from control_plane.decisions.quotas import NotAdmitted
from control_plane.decisions.refusals import Conflict, Forbidden, Malformed, Objection, UnknownName
from control_plane.decisions.requests import network_mode_offered
from control_plane.handle import Command
from control_plane.histories import allocation_history, histories
from control_plane.identity.gateway_keys import public_gateway_key
from control_plane.origin import Origin
from control_plane.settings import Settings
from events.allocations import AllocationFact, AllocationRequested
from events.envelope import Recorded
from events.facts import Reason
from events.ledger.store import refuse_unreadable
from events.values import (
    AllocationId,
    AppProfileName,
    ImageName,
    InvalidValue,
    NodeId,
    Position,
    ProjectId,
    SkuName,
    SlotId,
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

Argument = TypeVar("Argument")
router = APIRouter(
    prefix="/v1/allocations", tags=["allocations"], responses=PROBLEMS, route_class=NamingRoute
)
creations = APIRouter(
    prefix="/v1/allocations", tags=["allocations"], responses=PROBLEMS, route_class=CreationRoute
)
placements = APIRouter(
    prefix="/v1/placements", tags=["allocations"], responses=PROBLEMS, route_class=NamingRoute
)
JSON = "application/json"


class _Created(msgspec.Struct):
    """The fields of an `AllocationView` that the headers of a response need."""

    id: str
    version: int


@creations.post(
    "",
    status_code=202,
    response_model=AllocationView,
    responses=dry(AllocationView),
    openapi_extra=access(Scope.ALLOCATIONS_WRITE),
)
async def create(
    request: Request, principal: Caller, body: CreateAllocation, *, dry_run: DryRun = False
) -> Response:
    """Create an allocation. The response is immediate and has the claimed slots; watch the allocation until it is
    active.

    With `wait_for_capacity`, a request that cannot be placed now gets the state `waiting` and no slots yet.
    """

    def render(facts: tuple[AllocationFact, ...], now: datetime) -> str:
        # It was placed just now, so the heartbeat of its node is not overdue.
        view = allocation_view(facts, now, principal)
        return view.model_copy(update={"conditions": []}).model_dump_json()

    creation = Creation(*_new(request, principal, body), render)
    if dry_run:
        return await try_out(request, create_allocation(*creation))
    answer = await execute_creation(request, creation)
    created = msgspec.json.decode(answer, type=_Created)
    set_version(request, created.version)
    return Response(answer, 202, {"Location": f"/v1/allocations/{created.id}"}, JSON)


@placements.post("/preview", response_model=PlacementPreview, openapi_extra=access(Scope.ALLOCATIONS_WRITE))
async def preview(request: Request, principal: Caller, body: CreateAllocation) -> Response:
    """Show where an allocation would be placed now, and why each node is suitable or not. Nothing is created.

    The body is that of a new allocation. A body that no placement can help is refused like that of a new allocation.
    """

    def render(
        sku: SkuName | None,
        slots: Sequence[SlotId],
        refusal: Conflict | None,
        groups: Sequence[Group],
    ) -> str:
        against = () if refusal is None else refusal.objections
        shown = PlacementPreview(
            sku=sku,
            slots=list(slots),
            reasons=[
                ObjectionView(code=each.code, message=each.message, field=each.field) for each in against
            ],
            exceeded=exceeded_views(refusal.exceeded) if isinstance(refusal, NotAdmitted) else [],
            outlook=outlook_view(refusal.outlook) if isinstance(refusal, Unplaced) else None,
            groups=group_views(groups),
        )
        return shown.model_dump_json()

    command = preview_placement(*_new(request, principal, body), render)
    return await try_out(request, command)


def _new(request: Request, principal: Principal, body: CreateAllocation) -> tuple[NewAllocation, Origin]:
    """Return the allocation that a request body describes, with new ids, and the origin of the request."""
    correlation, settings = new_uuid(), plane_of(request).settings
    requested = _request(allocation_of(correlation), body, project_of(principal, body.project))
    new = NewAllocation(
        requested,
        settings.unreachable_after,
        simulated_allowed=settings.place_on_simulated_nodes,
        alternative_skus=[SkuName(each) for each in body.alternative_skus],
        app_profile=None if body.app_profile is None else AppProfileName(body.app_profile),
        max_price_per_hour=body.max_price_per_hour,
        ingress_rules=[(ingress_of(new_uuid()), each.requested) for each in body.ingress],
        wait=_wait(principal, body, settings),
    )
    return new, origin_of(request, principal, correlation_id=correlation, project=requested.project)


def _wait(principal: Principal, body: CreateAllocation, settings: Settings) -> WaitOptions | None:
    """Return how a request of the caller waits for capacity; None if it does not wait. Raises `Forbidden`."""
    wanted = body.wait_for_capacity
    if wanted is False:
        return None
    options = WaitForCapacity() if wanted is True else wanted
    if options.priority > 0 and principal.role is not Role.ADMIN:
        reason = f"priority {options.priority} is above 0, which only an admin may request; use 0 or less"
        raise Forbidden(Objection("priority_not_permitted", reason, "/wait_for_capacity/priority"))
    duration = timedelta(seconds=options.wait_seconds or settings.wait_seconds)
    return WaitOptions(options.priority, duration, settings.waiting_requests)


def _request(allocation: AllocationId, body: CreateAllocation, project: ProjectId) -> AllocationRequested:
    return AllocationRequested(
        allocation_id=allocation,
        project=project,
        sku=SkuName(body.sku),
        network_mode=network_mode_offered(body.network_mode),
        image=ImageName(body.image),
        ssh_authorized_keys=tuple(SshPublicKey(key) for key in body.ssh_authorized_keys),
        lease_seconds=body.lease_seconds,
        slot_count=body.slot_count,
        labels=dict(body.labels),
        apart_from=dict(body.apart_from),
        node=None if body.node is None else NodeId(body.node),
        replace_on_failure=body.replace_on_failure,
        user_data=body.user_data,
        gateway_key=public_gateway_key(allocation) if body.gateway_access else None,
    )


@router.get("", openapi_extra=access(Scope.ALLOCATIONS_READ))
async def list_allocations(
    request: Request,
    response: Response,
    principal: Caller,
    *,
    project: Annotated[str | None, Query(max_length=63)] = None,
    wanted: Wanted,
    at: At = None,
    cursor: Cursor = None,
    limit: Limit = 50,
    order: Order = "desc",
) -> Page[AllocationView]:
    """List allocations in their present state by the time of their request, newest first. With `at`, list those
    requested until then, in their state at that time.

    With `state`, a page may be short or empty without being the last.
    """
    only = within(principal, None if project is None else _project(project))
    page = partial(allocations.page, within=only, labelled=sorted(wanted.labels), descending=order == "desc")
    after = position_of(cursor)
    if at is not None:
        async with travel_of(request).to(at, known_to="allocations") as (conn, [place]):

            async def then(found: Sequence[allocations.Requested]) -> list[AllocationView]:
                return await allocations_then(conn, [each.allocation_id for each in found], place.position)

            upto = partial(page, conn, upto=place.position, among=await wanted.positions(conn))
            listed = await filtered(upto, _id_and_place, then, wanted.condition, after=after, limit=limit)
        set_headers(response, place)
        return listed
    async with plane_of(request).engine.connect() as conn:

        async def now(found: Sequence[allocations.Requested]) -> list[AllocationView]:
            streams = [stream_of_allocation(each.allocation_id) for each in found]
            by_stream = await histories(conn, streams)
            return [view_of_history(refuse_unreadable(by_stream[stream]), principal) for stream in streams]

        listed = await filtered(
            partial(page, conn, among=await wanted.positions(conn)),
            *(_id_and_place, now, wanted.condition),
            after=after,
            limit=limit,
        )
        views = await with_queue(conn, listed.items)
        listed.items = await with_conditions(conn, views, plane_of(request).settings.unreachable_after)
    return listed


def _id_and_place(requested: allocations.Requested) -> tuple[str, Position]:
    return requested.allocation_id, requested.position


def _project(raw: str) -> ProjectId:
    try:
        return project_id(raw)
    except InvalidValue as invalid:
        raise Malformed(Objection("invalid_project", str(invalid))) from None


@router.get("/{allocation}", openapi_extra=access(Scope.ALLOCATIONS_READ), **TAGGED)
async def show(request: Request, response: Response, allocation: str, at: At = None) -> AllocationView:
    """Return one allocation, now or as of the past."""
    if at is None:
        return await shown(request, allocation)
    name = await own_allocation(request, allocation)
    async with travel_of(request).to(at) as (conn, [place]):
        then = await allocations_then(conn, [name], place.position)
    if not then:
        reason = f"no allocation with the id {name!r} existed at position {place.position}"
        raise UnknownName(Objection("unknown_allocation", reason))
    set_headers(response, place)
    return then[0]


@router.get("/{allocation}/placement", openapi_extra=access(Scope.ALLOCATIONS_READ))
async def show_placement(request: Request, response: Response, allocation: str) -> PlacementView:
    """Explain why the allocation has its slots: the reason of every node, in the state just before the placement.

    The newest placement is explained. 409 if more than 20,000 slots and nodes have changed since.
    """
    placement = newest_placement(await _history(request, allocation))
    settings, allowed = plane_of(request).settings, plane_of(request).settings.place_on_simulated_nodes
    async with travel_of(request).to(placement.position) as (conn, [place]):
        groups = await explain_placement(
            conn, placement, settings.unreachable_after, simulated_allowed=allowed
        )
    set_headers(response, place)
    return placement_view(placement, groups)


def allocation_named(raw: str) -> AllocationId:
    """Parse an allocation id. Raises `UnknownName` if it is not valid."""
    try:
        return allocation_id(raw)
    except InvalidValue:
        raise _unknown(raw) from None


def _unknown(raw: str) -> UnknownName:
    return UnknownName(Objection("unknown_allocation", f"no allocation has the id {raw!r}"))


async def own_allocation(request: Request, raw: str) -> AllocationId:
    """Return the id of an allocation in a project of the caller. Raises `UnknownName`."""
    requested = (await _history(request, raw))[0].fact
    assert isinstance(requested, AllocationRequested)
    return requested.allocation_id


async def found(request: Request, allocation: str) -> AllocationView:
    """Return the present view of an allocation in a project of the caller, without the parts that need further reads.

    Raises `UnknownName`.
    """
    return view_of_history(await _history(request, allocation), caller_of(request))


async def shown(request: Request, allocation: str) -> AllocationView:
    """Return the present view of an allocation, with its ETag. Raises `UnknownName`."""
    view, plane = await found(request, allocation), plane_of(request)
    placing = Placing(plane.settings.unreachable_after, plane.settings.place_on_simulated_nodes)
    async with plane.engine.connect() as conn:
        queued = await with_queue(conn, [view], placing)
        [conditioned] = await with_conditions(conn, queued, plane.settings.unreachable_after)
    set_version(request, view.version)
    if view.state != "active":
        return conditioned
    address, key = plane.settings.ssh_gateway_address, plane.settings.ssh_gateway_host_key
    gateway = None if address is None else SshGateway(address=address, host_key=key)
    return conditioned.model_copy(
        update={"ssh_gateway": gateway, "terminal_address": plane.settings.terminal_address}
    )


async def _history(request: Request, raw: str) -> tuple[Recorded[AllocationFact], ...]:
    name = allocation_named(raw)
    async with plane_of(request).engine.connect() as conn:
        history = await allocation_history(conn, name, caller_of(request).projects)
    if not history:
        raise _unknown(raw)
    return history


@router.post(
    "/{allocation}/stop",
    status_code=202,
    dependencies=[IF_MATCH],
    openapi_extra=access(Scope.ALLOCATIONS_WRITE),
)
async def stop(request: Request, principal: Caller, allocation: str) -> AllocationView:
    """Stop the slices: they become unreachable; slots, addresses and the lease are kept."""
    reason = Reason("stopped_by_caller", f"stop was requested by {principal.actor}")
    return await _execute(stop_allocation, request, principal, allocation, reason)


@router.post(
    "/{allocation}/start",
    status_code=202,
    dependencies=[IF_MATCH],
    openapi_extra=access(Scope.ALLOCATIONS_WRITE),
)
async def start(request: Request, principal: Caller, allocation: str) -> AllocationView:
    """Start the slices of a stopped allocation in the same slots. Watch the allocation until it is active."""
    reason = Reason("started_by_caller", f"start was requested by {principal.actor}")
    return await _execute(start_allocation, request, principal, allocation, reason)


@router.post("/{allocation}/lease", dependencies=[IF_MATCH], openapi_extra=access(Scope.ALLOCATIONS_WRITE))
async def renew(request: Request, principal: Caller, allocation: str, body: RenewLease) -> AllocationView:
    """Let the lease end `lease_seconds` from now. A lease that ends later already is not changed."""
    return await _execute(renew_lease, request, principal, allocation, timedelta(seconds=body.lease_seconds))


@router.delete(
    "/{allocation}", status_code=202, dependencies=[IF_MATCH], openapi_extra=access(Scope.ALLOCATIONS_WRITE)
)
async def release(request: Request, principal: Caller, allocation: str) -> AllocationView:
    """Release the allocation. Its slots can be claimed again once their node has proved them empty."""
    reason = Reason("released_by_caller", f"release was requested by {principal.actor}")
    return await _execute(release_allocation, request, principal, allocation, reason)


@router.post(
    "/{allocation}/fault",
    status_code=202,
    dependencies=[IF_MATCH],
    openapi_extra=access(Scope.ALLOCATIONS_WRITE),
)
async def report_fault(
    request: Request, principal: Caller, allocation: str, body: ReportFault
) -> AllocationView:
    """Release the allocation and report a fault of its hardware.

    No slice is placed in its slots until an admin has readmitted them, even when their nodes have proved them empty.
    """
    return await _execute(release_with_fault, request, principal, allocation, body.fault)


async def _execute(
    command: Callable[[AllocationId, Origin, Argument], Command],
    request: Request,
    principal: Principal,
    allocation: str,
    argument: Argument,
) -> AllocationView:
    """Execute a command on an allocation, with the reason or duration that it takes, and return the view of the
    allocation afterwards.
    """
    requested = (await _history(request, allocation))[0].fact
    assert isinstance(requested, AllocationRequested)
    name = requested.allocation_id
    origin = origin_of(request, principal, correlation_id=correlation_of(name), project=requested.project)
    await execute(request, command(name, origin, argument), stream_of_allocation(name))
    return await shown(request, allocation)
