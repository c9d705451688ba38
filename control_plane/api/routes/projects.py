"""`/v1/projects`: create, list, show, describe and archive projects."""

from fastapi import APIRouter, Request
from pydantic import BaseModel

from control_plane.api.requests.access import Caller, access, caller_of
from control_plane.api.requests.bodies import ArchiveProject, CreateProject, DescribeProject
from control_plane.api.requests.pages import Cursor, Limit, Page, invalid_cursor
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import key_of, origin_of, plane_of
from control_plane.commands.projects import archive_project, create_project, describe_project
from control_plane.decisions.access import Scope, unknown_project, within
from control_plane.decisions.refusals import UnknownName
from control_plane.handle import Command
from events.values import InvalidValue, ProjectId, project_id
from read_models import projects
from read_models.projects import ProjectRow

router = APIRouter(prefix="/v1/projects", tags=["projects"], responses=PROBLEMS)


class ProjectView(BaseModel):
    """A project. `state`: active or archived. `reason` is why it was archived, null while it is active."""

    id: str
    state: str
    description: str
    reason: str | None
    project_network_id: str | None
    """Network that the slices of the project share; null: they are isolated from each other."""


def _view(row: ProjectRow) -> ProjectView:
    return ProjectView(
        id=row.project,
        state="active" if row.archived is None else "archived",
        description=row.description,
        reason=row.archived,
        project_network_id=row.project_network_id,
    )


@router.post("", status_code=201, openapi_extra=access(Scope.PROJECTS_WRITE))
async def create(request: Request, principal: Caller, body: CreateProject) -> ProjectView:
    """Create a project."""
    name = ProjectId(body.id)
    command = create_project(name, body.description, origin_of(request, principal, project=name))
    return await _execute(request, name, command)


@router.get("", openapi_extra=access(Scope.PROJECTS_READ))
async def list_projects(
    request: Request, principal: Caller, cursor: Cursor = None, limit: Limit = 100
) -> Page[ProjectView]:
    """List the projects of the caller by name; for admins and auditors, all projects."""
    after = None if cursor is None else _cursor(cursor)
    async with plane_of(request).engine.connect() as conn:
        rows = await projects.page(conn, within=principal.projects, after=after, limit=limit)
    following = rows[-1].project if len(rows) == limit else None
    return Page(items=[_view(row) for row in rows], next_cursor=following)


@router.get("/{project}", openapi_extra=access(Scope.PROJECTS_READ))
async def show(request: Request, project: str) -> ProjectView:
    """Return one project."""
    name = _named(project)
    async with plane_of(request).engine.connect() as conn:
        rows = await projects.page(conn, within=within(caller_of(request), name), after=None, limit=1)
    if not rows:
        raise _unknown(project)
    return _view(rows[0])


@router.patch("/{project}", openapi_extra=access(Scope.PROJECTS_WRITE))
async def describe(request: Request, principal: Caller, project: str, body: DescribeProject) -> ProjectView:
    """Change the description of a project."""
    name = _named(project)
    command = describe_project(name, body.description, origin_of(request, principal, project=name))
    return await _execute(request, name, command)


@router.post("/{project}/archive", openapi_extra=access(Scope.PROJECTS_WRITE))
async def archive(request: Request, principal: Caller, project: str, body: ArchiveProject) -> ProjectView:
    """Archive a project after its allocations have released their slots. It can then be read only. Idempotent."""
    name = _named(project)
    command = archive_project(name, body.reason, origin_of(request, principal, project=name))
    return await _execute(request, name, command)


async def _execute(request: Request, name: ProjectId, command: Command) -> ProjectView:
    await plane_of(request).handle(command, await key_of(request, caller_of(request)))
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
