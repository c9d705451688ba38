"""Commands of `sliceplane projects`: create, list, show, describe, limit, archive and erase projects."""

from typing import Annotated

import typer
from msgspec import UNSET

from control_plane.cli.options import Output, Why
from control_plane.cli.pages import access as pages
from control_plane.cli.request import seconds
from control_plane.cli.screen import Format
from control_plane.cli.session import session
from control_plane.cli.times import At
from control_plane.client import calls
from control_plane.client.bodies import CreateProject, SetProjectLimits

commands = typer.Typer(no_args_is_help=True)
limit_commands = typer.Typer(no_args_is_help=True)
commands.add_typer(limit_commands, name="limits", help="Set and show the limits of a project.")
ProjectId = Annotated[str, typer.Argument(metavar="PROJECT", help="Id of a project, such as vision.")]


@commands.command("list")
def list_projects(context: typer.Context, *, output: Output = Format.TABLE) -> None:
    """List your projects; as an admin or auditor, all projects."""
    with session(context, output) as current:
        current.show_list(calls.projects(), pages.projects)


@commands.command()
def show(context: typer.Context, *, project: ProjectId, at: At = None, output: Output = Format.TABLE) -> None:
    """Show a project."""
    with session(context, output) as current:
        current.screen.one(current.send(calls.project(project, at=at)), pages.project)


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
    """Archive a project. This is refused while one of its allocations holds a slot. An archived project can be read,
    but not changed.
    """
    with session(context, output) as current:
        current.screen.one(current.send(calls.archive_project(project, reason)), pages.project)


@commands.command()
def erase(context: typer.Context, *, project: ProjectId, reason: Why, output: Output = Format.TABLE) -> None:
    """Erase the personal data of a project permanently, after its allocations are released: SSH keys, labels,
    user-data and descriptions. The project stays usable.
    """
    with session(context, output) as current:
        current.screen.one(current.send(calls.erase_project(project, reason)), pages.project)


_UNLIMITED = "no limit"


@limit_commands.command("set")
def set_limits(
    context: typer.Context,
    *,
    project: ProjectId,
    slots: Annotated[int | None, typer.Option(help="Slots.", show_default=_UNLIMITED)] = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs.", show_default=_UNLIMITED)] = None,
    vcpus: Annotated[int | None, typer.Option(help="Virtual processors.", show_default=_UNLIMITED)] = None,
    memory_mib: Annotated[int | None, typer.Option(help="Memory in MiB.", show_default=_UNLIMITED)] = None,
    public_addresses: Annotated[
        int | None,
        typer.Option(help="Public addresses that one slice has for itself.", show_default=_UNLIMITED),
    ] = None,
    public_ports: Annotated[
        int | None, typer.Option(help="Ports of public addresses.", show_default=_UNLIMITED)
    ] = None,
    waiting_requests: Annotated[
        int | None,
        typer.Option(help="Requests that wait for capacity.", show_default="the default of the deployment"),
    ] = None,
    price_per_hour: Annotated[
        str | None,
        typer.Option(help="Sum of the prices per hour, such as 60.00.", show_default=_UNLIMITED),
    ] = None,
    max_lease: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Longest lease, from a request or a renewal on.", show_default=_UNLIMITED
        ),
    ] = None,
    budget_per_month: Annotated[
        str | None,
        typer.Option(
            help="Price of all leases in a calendar month, such as 9000.00.", show_default=_UNLIMITED
        ),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Set all limits of a project. A limit that is not given is removed, and existing allocations keep what they
    have.
    """
    body = SetProjectLimits(
        slots=UNSET if slots is None else slots,
        gpus=UNSET if gpus is None else gpus,
        vcpus=UNSET if vcpus is None else vcpus,
        memory_mib=UNSET if memory_mib is None else memory_mib,
        public_addresses=UNSET if public_addresses is None else public_addresses,
        public_ports=UNSET if public_ports is None else public_ports,
        waiting_requests=UNSET if waiting_requests is None else waiting_requests,
        price_per_hour=price_per_hour or UNSET,
        max_lease_seconds=UNSET if max_lease is None else seconds(max_lease, "--max-lease"),
        budget_per_month=budget_per_month or UNSET,
    )
    with session(context, output) as current:
        current.screen.one(current.send(calls.set_project_limits(project, body)), pages.project_limits)


@limit_commands.command("show")
def show_limits(
    context: typer.Context, *, project: ProjectId, at: At = None, output: Output = Format.TABLE
) -> None:
    """Show the limits of a project and what is used of them."""
    with session(context, output) as current:
        current.screen.one(current.send(calls.project(project, at=at)), pages.project_limits)
