"""`/v1/projects`: create, list, show, describe and archive projects."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel

from control_plane.api.requests.access import AuthenticatedRoute, Caller, access, caller_of
from control_plane.api.requests.bodies import CreateProject, DescribeProject, ReasonOnly
from control_plane.api.requests.commands import DryRun, dry, execute, try_out
from control_plane.api.requests.conditional import IF_MATCH, TAGGED, set_version
from control_plane.api.requests.pages import Cursor, Limit, Order, Page, invalid_cursor
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import origin_of, plane_of
from control_plane.api.views.allowed_actions import AllowedActions, actions_on_project
from control_plane.commands.projects import archive_project, create_project, describe_project
from control_plane.decisions.access import Principal, Scope, unknown_project, within
from control_plane.decisions.refusals import UnknownName
from control_plane.handle import Command
from events.projects import ProjectCreated
from events.values import InvalidValue, ProjectId, project_id, stream_of_project
from read_models import projects
from read_models.projects import ProjectRow

router = APIRouter(
    prefix="/v1/projects", tags=["projects"], responses=PROBLEMS, route_class=AuthenticatedRoute
)
JSON = "application/json"


class ProjectView(BaseModel):
    """A project. `state`: active or archived. `reason` is why it was archived, null while it is active."""

    id: str
    state: str
    description: str
    reason: str | None
    project_network_id: str | None
    """Network that the slices of the project share; null: they are isolated from each other."""
    allowed_actions: AllowedActions
    """Actions that the caller may take now, or the reason why not."""


def _view(row: ProjectRow, principal: Principal) -> ProjectView:
    return ProjectView(
        id=row.project,
        state="active" if row.archived is None else "archived",
        description=row.description,
        reason=row.archived,
        project_network_id=row.project_network_id,
        allowed_actions=actions_on_project(principal, row),
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
        return _view(projects.created(fact), principal).model_dump_json()

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
    following = rows[-1].project if len(rows) == limit else None
    return Page(items=[_view(row, principal) for row in rows], next_cursor=following)


@router.get("/{project}", openapi_extra=access(Scope.PROJECTS_READ), **TAGGED)
async def show(request: Request, project: str) -> ProjectView:
    """Return one project."""
    name, principal = _named(project), caller_of(request)
    async with plane_of(request).engine.connect() as conn:
        rows = await projects.page(conn, within=within(principal, name), after=None, limit=1)
    if not rows:
        raise _unknown(project)
    set_version(request, rows[0].version)
    return _view(rows[0], principal)


@router.patch("/{project}", dependencies=[IF_MATCH], openapi_extra=access(Scope.PROJECTS_WRITE))
async def describe(request: Request, principal: Caller, project: str, body: DescribeProject) -> ProjectView:
    """Change the description of a project."""
    name = _named(project)
    command = describe_project(name, body.description, origin_of(request, principal, project=name))
    return await _execute(request, name, command)


@router.post("/{project}/archive", dependencies=[IF_MATCH], openapi_extra=access(Scope.PROJECTS_WRITE))
async def archive(request: Request, principal: Caller, project: str, body: ReasonOnly) -> ProjectView:
    """Archive a project after its allocations have released their slots. An archived project can be read, but not
    changed. Idempotent.
    """
    name = _named(project)
    command = archive_project(name, body.reason, origin_of(request, principal, project=name))
    return await _execute(request, name, command)


async def _execute(request: Request, name: ProjectId, command: Command) -> ProjectView:
    await execute(request, command, stream_of_project(name))
    return await show(request, name)


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
