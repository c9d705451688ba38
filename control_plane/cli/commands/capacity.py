"""Commands of `sliceplane capacity`: show how many allocations fit, and the slots of each SKU now and over time."""

from functools import partial
from typing import Annotated

import typer

from control_plane.cli.options import UnnamedOutput
from control_plane.cli.pages import capacity as pages
from control_plane.cli.request import seconds
from control_plane.cli.screen import UnnamedFormat
from control_plane.cli.session import session
from control_plane.cli.times import TIMES, At, time_option
from control_plane.client import calls

commands = typer.Typer()


@commands.callback(invoke_without_command=True)
def capacity(
    context: typer.Context,
    *,
    by_node: Annotated[bool, typer.Option("--by-node", help="Show the slots of each node.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of nodes of --by-node.")] = 100,
    project: Annotated[
        str | None,
        typer.Option(metavar="PROJECT", help="Leave out slots that are reserved for other projects."),
    ] = None,
    at: At = None,
    output: UnnamedOutput = UnnamedFormat.TABLE,
) -> None:
    """Show how many more allocations of one slot fit for each SKU, and its slots by status."""
    if context.invoked_subcommand is not None:
        return
    with session(context, output) as current:
        if by_node:
            current.show_list(calls.node_capacity(at=at), pages.nodes, limit)
        else:
            current.screen.one(current.send(calls.capacity(at=at, project=project)), pages.skus)


@commands.command()
def history(
    context: typer.Context,
    *,
    since: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="WHEN",
            callback=time_option,
            help=f"Begin at this time: {TIMES}.",
            show_default="a day before the end",
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            callback=time_option,
            help="End at this time, in the same form.",
            show_default="now",
        ),
    ] = None,
    step: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Time between two points, such as 30m.", show_default="about 48 points"
        ),
    ] = None,
    sku: Annotated[str | None, typer.Option(help="Only this SKU.", show_default=False)] = None,
    node: Annotated[str | None, typer.Option(help="Only the slots of this node.", show_default=False)] = None,
    output: UnnamedOutput = UnnamedFormat.TABLE,
) -> None:
    """Show the slots of each SKU by status over time."""
    step_seconds = None if step is None else seconds(step, "--step")
    call = calls.capacity_history(since=since, until=until, step=step_seconds, node_name=node)
    with session(context, output) as current:
        current.screen.one(current.send(call), partial(pages.history, sku=sku))
