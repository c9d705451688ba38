"""Commands of `sliceplane reservations`: list, set and remove slots that are kept free for a project."""

from typing import Annotated

import typer

from control_plane.cli.options import Output
from control_plane.cli.pages import access as pages
from control_plane.cli.screen import Format
from control_plane.cli.session import session
from control_plane.client import calls
from control_plane.client.bodies import SetReservation

commands = typer.Typer(no_args_is_help=True)
ProjectId = Annotated[str, typer.Argument(metavar="PROJECT", help="Id of a project, such as vision.")]
Sku = Annotated[str, typer.Argument(metavar="SKU", help="Name of a SKU.")]


@commands.command("list")
def list_reservations(context: typer.Context, *, output: Output = Format.TABLE) -> None:
    """List the reservations of your projects; as an admin or auditor, those of all projects."""
    with session(context, output) as current:
        current.show_list(calls.reservations(), pages.reservations)


@commands.command("set")
def set_reservation(
    context: typer.Context,
    *,
    project: ProjectId,
    sku: Sku,
    slots: Annotated[
        int,
        typer.Argument(
            metavar="SLOTS", min=1, help="Number of slots to reserve, including those that the project holds."
        ),
    ],
    output: Output = Format.TABLE,
) -> None:
    """Keep slots of a SKU free for a project. The answer states how many of them are missing now."""
    with session(context, output) as current:
        reply = current.send(calls.set_reservation(project, sku, SetReservation(slots=slots)))
        current.screen.one(reply, pages.project_limits)


@commands.command()
def remove(context: typer.Context, *, project: ProjectId, sku: Sku, output: Output = Format.TABLE) -> None:
    """Remove a reservation. Allocations of the project keep their slots."""
    with session(context, output) as current:
        current.screen.one(current.send(calls.remove_reservation(project, sku)), pages.project_limits)
