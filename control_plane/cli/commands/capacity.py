"""`sliceplane capacity`."""

from typing import Annotated

import typer

from control_plane.cli.options import UnnamedOutput
from control_plane.cli.pages import capacity as pages
from control_plane.cli.screen import UnnamedFormat
from control_plane.cli.session import session
from control_plane.cli.times import At
from control_plane.client import calls


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
    with session(context, output) as current:
        if by_node:
            current.show_list(calls.node_capacity(at=at), pages.nodes, limit)
        else:
            current.screen.one(current.send(calls.capacity(at=at, project=project)), pages.skus)
