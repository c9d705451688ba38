"""`sliceplane projects`."""

from typing import Annotated

import typer

from control_plane.cli.access_answers import Project
from control_plane.cli.answers import decode
from control_plane.cli.options import AsJson, Why
from control_plane.cli.pages import access as pages
from control_plane.cli.paths import project_path
from control_plane.cli.session import Session, session

commands = typer.Typer(no_args_is_help=True)
ProjectId = Annotated[str, typer.Argument(metavar="PROJECT", help="Id of a project, such as vision.")]


@commands.command("list")
def list_projects(context: typer.Context, *, as_json: AsJson = False) -> None:
    """List your projects; as an admin or auditor, all projects."""
    with session(context, json=as_json) as current:
        items = current.client.items("/v1/projects")
        if as_json:
            current.screen.documents(items)
        else:
            current.screen.rows(pages.projects(decode(item, Project) for item in items))


@commands.command()
def show(context: typer.Context, *, project: ProjectId, as_json: AsJson = False) -> None:
    """Show a project."""
    with session(context, json=as_json) as current:
        _print(current, current.client.get(project_path(project)))


@commands.command()
def create(
    context: typer.Context,
    *,
    project: ProjectId,
    description: Annotated[str, typer.Option(help="What the project is for.", metavar="TEXT")] = "",
    as_json: AsJson = False,
) -> None:
    """Create a project. Allocations can be created in it at once."""
    with session(context, json=as_json) as current:
        _print(current, current.client.post("/v1/projects", {"id": project, "description": description}))


@commands.command()
def describe(
    context: typer.Context,
    *,
    project: ProjectId,
    description: Annotated[str, typer.Argument(metavar="TEXT", help="The new description.")],
    as_json: AsJson = False,
) -> None:
    """Change the description of a project."""
    with session(context, json=as_json) as current:
        _print(current, current.client.patch(project_path(project), {"description": description}))


@commands.command()
def archive(context: typer.Context, *, project: ProjectId, reason: Why, as_json: AsJson = False) -> None:
    """Archive a project after its allocations are released. It can be read, but not changed any more."""
    with session(context, json=as_json) as current:
        _print(current, current.client.post(project_path(project, "archive"), {"reason": reason}))


def _print(current: Session, raw: bytes) -> None:
    if current.screen.json:
        current.screen.document(raw)
    else:
        current.screen.page(pages.project(decode(raw, Project)))
