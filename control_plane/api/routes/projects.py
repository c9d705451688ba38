"""`/v1/projects`: create, list, show, describe, limit, archive and erase projects."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.api.requests.access import AuthenticatedRoute, Caller, access, caller_of
from control_plane.api.requests.as_of import At, set_headers, travel_of
from control_plane.api.requests.bodies import (
    CreateProject,
    DescribeProject,
    ReasonOnly,
    SetProjectLimits,
    SetReservation,
)
from control_plane.api.requests.commands import DryRun, dry, execute, try_out
from control_plane.api.requests.conditional import IF_MATCH, TAGGED, set_version
from control_plane.api.requests.pages import Cursor, Limit, Order, Page, invalid_cursor, numbered, page_of
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import origin_of, plane_of
from control_plane.api.views.allowed_actions import AllowedActions, actions_on_project
from control_plane.api.views.quota_views import (
    BudgetView,
    ProjectLimitsView,
    ProjectUseView,
    ReservationView,
    budget_view,
    project_limits_view,
    project_use_view,
    reservation_view,
)
from control_plane.commands.admission.reservations import Placeable, supplies
from control_plane.commands.projects import (
    archive_project,
    create_project,
    describe_project,
    erase_personal_data,
    set_limits,
    set_reservation,
)
from control_plane.decisions.access import Principal, Scope, unknown_project, within
from control_plane.decisions.budgets import month_of
from control_plane.decisions.refusals import Objection, UnknownName
from control_plane.decisions.reservations import Supply
from control_plane.handle import Command
from control_plane.time_travel.rows import rows_at
from events.derived.quotas import NOTHING_USED, QuotaUse
from events.ledger.connection import ledger_connection
from events.projects import ProjectCreated, ProjectLimits
from events.values import InvalidValue, ProjectId, SkuName, project_id, stream_of_project
from read_models import projects
from read_models.commitments import commitments
from read_models.inline import PROJECTS
from read_models.projects import ProjectRow
from read_models.quota_use import used_by

router = APIRouter(
    prefix="/v1/projects", tags=["projects"], responses=PROBLEMS, route_class=AuthenticatedRoute
)
reservations = APIRouter(
    prefix="/v1/reservations", tags=["projects"], responses=PROBLEMS, route_class=AuthenticatedRoute
)
JSON = "application/json"
_NONE_SUPPLIED: Final[Mapping[SkuName, Supply]] = MappingProxyType({})


class ProjectView(BaseModel):
    """A project. `state`: active or archived. `reason` is why it was archived, null while it is active."""

    id: str
    state: str
    description: str
    reason: str | None
    project_network_id: str | None
    """Network that the slices of the project share; null: they are isolated from each other."""
    limits: ProjectLimitsView
    used: ProjectUseView | None
    """What is used of the limits; null in a view of the past."""
    budget: BudgetView | None
    """What is spent and committed of the budget of the present month; null without a budget, and in a view of the
    past."""
    reservations: list[ReservationView]
    """Slots that are kept free for the project, by SKU."""
    allowed_actions: AllowedActions
    """Actions that the caller may take now, or the reason why not; empty in a view of the past."""


def _view(
    row: ProjectRow,
    principal: Principal | None,
    used: QuotaUse | None,
    budget: BudgetView | None = None,
    supplied: Mapping[SkuName, Supply] = _NONE_SUPPLIED,
) -> ProjectView:
    return ProjectView(
        id=row.project,
        state="active" if row.archived is None else "archived",
        description=row.description,
        reason=row.archived,
        project_network_id=row.project_network_id,
        limits=project_limits_view(row.limits),
        used=None if used is None else project_use_view(used),
        budget=budget,
        reservations=[
            reservation_view(row.project, sku, slots, supplied.get(sku))
            for sku, slots in row.reservations.items()
        ],
        allowed_actions={} if principal is None or used is None else actions_on_project(principal, row, used),
    )


@router.post(
    "",
    status_code=201,
    response_model=ProjectView,
    responses=dry(ProjectView),
    openapi_extra=access(Scope.PROJECTS_WRITE),
)
async def create(
    request: Request, principal: Caller, body: CreateProject, *, dry_run: DryRun = False
) -> Response:
    """Create a project."""
    name = ProjectId(body.id)

    def render(fact: ProjectCreated) -> str:
        return _view(projects.created(fact), principal, NOTHING_USED).model_dump_json()

    command = create_project(name, body.description, origin_of(request, principal, project=name), render)
    if dry_run:
        return await try_out(request, command)
    answer = await execute(request, command)
    set_version(request, 1)
    return Response(answer, 201, {"Location": f"/v1/projects/{name}"}, JSON)


@router.get("", openapi_extra=access(Scope.PROJECTS_READ))
async def list_projects(
    request: Request,
    principal: Caller,
    *,
    state: Annotated[Literal["active", "archived"] | None, Query(description="Only in this state.")] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
    order: Order = "asc",
) -> Page[ProjectView]:
    """List the projects of the caller by name; for admins and auditors, all projects."""
    after = None if cursor is None else _cursor(cursor)
    async with plane_of(request).engine.connect() as conn:
        rows = await projects.page(
            conn,
            within=principal.projects,
            after=after,
            limit=limit,
            descending=order == "desc",
            archived=None if state is None else state == "archived",
        )
        used = await used_by(conn, [stream_of_project(row.project) for row in rows])
        budgets = await _budgets(request, conn, rows)
        supplied = await _supplied(request, conn, rows)
    following = rows[-1].project if len(rows) == limit else None
    items = [
        _view(row, principal, used[stream_of_project(row.project)], budgets.get(row.project), supplied)
        for row in rows
    ]
    return Page(items=items, next_cursor=following)


@router.get("/{project}", openapi_extra=access(Scope.PROJECTS_READ), **TAGGED)
async def show(request: Request, response: Response, project: str, at: At = None) -> ProjectView:
    """Return one project, now or as of the past."""
    name = _named(project)
    if at is None:
        return await _shown(request, name)
    if not caller_of(request).permits(name):
        raise _unknown(project)
    stream = stream_of_project(name)
    async with travel_of(request).to(at) as (conn, [place]):
        rows = await rows_at(await ledger_connection(conn), PROJECTS, [stream], place.position)
    if stream not in rows:
        reason = f"no project with the id {name!r} existed at position {place.position}"
        raise UnknownName(Objection("unknown_project", reason))
    set_headers(response, place)
    return _view(ProjectRow(rows[stream]), None, None)


async def _shown(request: Request, name: ProjectId) -> ProjectView:
    """Return the present view of a project of the caller, with its ETag. Raises `UnknownName`."""
    principal = caller_of(request)
    async with plane_of(request).engine.connect() as conn:
        rows = await projects.page(conn, within=within(principal, name), after=None, limit=1)
        used = await used_by(conn, [stream_of_project(name)])
        budgets = await _budgets(request, conn, rows)
        supplied = await _supplied(request, conn, rows)
    if not rows:
        raise _unknown(name)
    set_version(request, rows[0].version)
    return _view(rows[0], principal, used[stream_of_project(name)], budgets.get(name), supplied)


async def _supplied(
    request: Request, conn: AsyncConnection, rows: Sequence[ProjectRow]
) -> Mapping[SkuName, Supply]:
    """Return, for each SKU that one of these projects has reserved, all reservations and the free slots for them."""
    names = {sku for row in rows for sku in row.reservations}
    settings = plane_of(request).settings
    nodes = Placeable(settings.unreachable_after, settings.place_on_simulated_nodes)
    return await supplies(conn, names, nodes) if names else {}


async def _budgets(
    request: Request, conn: AsyncConnection, rows: Sequence[ProjectRow]
) -> dict[ProjectId, BudgetView]:
    """Return the budget of each of these projects that has one."""
    limits = {
        row.project: row.limits.budget_per_month for row in rows if row.limits.budget_per_month is not None
    }
    if not limits:
        return {}
    now = await plane_of(request).handle.clock(conn)
    month = month_of(now)
    found = await commitments(conn, [*limits], *month, now)
    return {name: budget_view(limit, month, found[name]) for name, limit in limits.items()}


@router.patch("/{project}", dependencies=[IF_MATCH], openapi_extra=access(Scope.PROJECTS_WRITE))
async def describe(request: Request, principal: Caller, project: str, body: DescribeProject) -> ProjectView:
    """Change the description of a project."""
    name = _named(project)
    command = describe_project(name, body.description, origin_of(request, principal, project=name))
    return await _execute(request, name, command)


@router.put("/{project}/limits", dependencies=[IF_MATCH], openapi_extra=access(Scope.PROJECTS_WRITE))
async def limit(request: Request, principal: Caller, project: str, body: SetProjectLimits) -> ProjectView:
    """Set the limits of a project: a request that would exceed one is refused. Existing allocations keep what they
    have, even beyond a limit. Idempotent.
    """
    name, limits = _named(project), ProjectLimits(**body.model_dump())
    command = set_limits(name, limits, origin_of(request, principal, project=name))
    return await _execute(request, name, command)


@router.put(
    "/{project}/reservations/{sku}", dependencies=[IF_MATCH], openapi_extra=access(Scope.PROJECTS_WRITE)
)
async def reserve(
    request: Request, principal: Caller, project: str, sku: str, body: SetReservation
) -> ProjectView:
    """Keep slots of a SKU free for a project. It may reserve more than is free now: `short_by` states how many slots
    are missing. Idempotent.
    """
    return await _reserve(request, principal, project, sku, body.slots)


@router.delete(
    "/{project}/reservations/{sku}", dependencies=[IF_MATCH], openapi_extra=access(Scope.PROJECTS_WRITE)
)
async def remove_reservation(request: Request, principal: Caller, project: str, sku: str) -> ProjectView:
    """Remove the reservation of a SKU. Allocations of the project keep their slots. Idempotent."""
    return await _reserve(request, principal, project, sku, 0)


async def _reserve(request: Request, principal: Principal, project: str, sku: str, slots: int) -> ProjectView:
    name, origin = _named(project), origin_of(request, principal, project=ProjectId(project))
    return await _execute(request, name, set_reservation(name, SkuName(sku), slots, origin))


@reservations.get("", openapi_extra=access(Scope.PROJECTS_READ))
async def list_reservations(
    request: Request,
    principal: Caller,
    *,
    cursor: Cursor = None,
    limit: Limit = 100,
    order: Order = "asc",
) -> Page[ReservationView]:
    """List the reservations of the projects of the caller by project and SKU; for admins and auditors, those of all
    projects.
    """
    async with plane_of(request).engine.connect() as conn:
        found = await projects.reserved(conn)
        rows = [
            row
            for name in sorted(found)
            if principal.permits(name)
            if (row := await projects.find(conn, name))
        ]
        supplied = await _supplied(request, conn, rows)
    items = [
        reservation_view(row.project, sku, slots, supplied.get(sku))
        for row in rows
        for sku, slots in row.reservations.items()
    ]
    return page_of(items, numbered(items), cursor, limit, order)


@router.post("/{project}/archive", dependencies=[IF_MATCH], openapi_extra=access(Scope.PROJECTS_WRITE))
async def archive(request: Request, principal: Caller, project: str, body: ReasonOnly) -> ProjectView:
    """Archive a project after its allocations have released their slots. An archived project can be read, but not
    changed. Idempotent.
    """
    name = _named(project)
    command = archive_project(name, body.reason, origin_of(request, principal, project=name))
    return await _execute(request, name, command)


@router.delete(
    "/{project}/personal-data", dependencies=[IF_MATCH], openapi_extra=access(Scope.PROJECTS_WRITE)
)
async def erase(request: Request, principal: Caller, project: str, body: ReasonOnly) -> ProjectView:
    """Erase the personal data of a project: SSH keys, labels, user-data, descriptions and the reason of its archival
    become unreadable in all past events and are removed from all views. Its allocations must have released their slots
    before. The project stays usable. This cannot be undone. Idempotent.
    """
    name = _named(project)
    command = erase_personal_data(name, body.reason, origin_of(request, principal, project=name))
    return await _execute(request, name, command)


async def _execute(request: Request, name: ProjectId, command: Command) -> ProjectView:
    await execute(request, command, stream_of_project(name))
    return await _shown(request, name)


def _named(raw: str) -> ProjectId:
    try:
        return project_id(raw)
    except InvalidValue:
        raise _unknown(raw) from None


def _cursor(raw: str) -> ProjectId:
    try:
        return project_id(raw)
    except InvalidValue:
        raise invalid_cursor(raw) from None


def _unknown(raw: str) -> UnknownName:
    return UnknownName(unknown_project(raw))
