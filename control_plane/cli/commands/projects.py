"""`sliceplane projects`."""

from typing import Annotated

import typer

from control_plane.cli.options import Output, Why
from control_plane.cli.pages import access as pages
from control_plane.cli.screen import Format
from control_plane.cli.session import session
from control_plane.client import calls
from control_plane.client.bodies import CreateProject

commands = typer.Typer(no_args_is_help=True)
ProjectId = Annotated[str, typer.Argument(metavar="PROJECT", help="Id of a project, such as vision.")]


@commands.command("list")
def list_projects(context: typer.Context, *, output: Output = Format.TABLE) -> None:
    """List your projects; as an admin or auditor, all projects."""
    with session(context, output) as current:
        current.show_list(calls.projects(), pages.projects)


@commands.command()
def show(context: typer.Context, *, project: ProjectId, output: Output = Format.TABLE) -> None:
    """Show a project."""
    with session(context, output) as current:
        current.screen.one(current.send(calls.project(project)), pages.project)


@commands.command()
def create(
    context: typer.Context,
    *,
    project: ProjectId,
    description: Annotated[str, typer.Option(help="What the project is for.", metavar="TEXT")] = "",
    output: Output = Format.TABLE,
) -> None:
    """Create a project. Allocations can be created in it at once."""
    with session(context, output) as current:
        body = CreateProject(id=project, description=description)
        current.screen.one(current.send(calls.create_project(body)), pages.project)


@commands.command()
def describe(
    context: typer.Context,
    *,
    project: ProjectId,
    description: Annotated[str, typer.Argument(metavar="TEXT", help="The new description.")],
    output: Output = Format.TABLE,
) -> None:
    """Change the description of a project."""
    with session(context, output) as current:
        current.screen.one(current.send(calls.describe_project(project, description)), pages.project)


@commands.command()
def archive(
    context: typer.Context, *, project: ProjectId, reason: Why, output: Output = Format.TABLE
) -> None:
    """Archive a project after its allocations are released. It can be read, but not changed any more."""
    with session(context, output) as current:
        current.screen.one(current.send(calls.archive_project(project, reason)), pages.project)
