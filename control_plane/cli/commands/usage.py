"""`sliceplane usage`."""

from functools import partial
from typing import Annotated

import typer

from control_plane.cli.options import UnnamedOutput
from control_plane.cli.pages import usage as pages
from control_plane.cli.screen import UnnamedFormat
from control_plane.cli.session import session
from control_plane.cli.times import Since, Until
from control_plane.client import calls

commands = typer.Typer(no_args_is_help=True)
Project = Annotated[str | None, typer.Option(help="Only usage of this project.", show_default=False)]
Sku = Annotated[str | None, typer.Option(help="Only usage of this SKU.", show_default=False)]
Label = Annotated[
    str | None,
    typer.Option(metavar="NAME=VALUE", help="Only usage of allocations with this label.", show_default=False),
]


@commands.callback()
def group() -> None:
    """Show what was used, at which price, and the events that it follows from."""


@commands.command()
def show(
    context: typer.Context,
    *,
    since: Since = None,
    to: Until = None,
    project: Project = None,
    sku: Sku = None,
    label: Label = None,
    group_by: Annotated[
        str | None,
        typer.Option(metavar="GROUPING", help="Group by project, sku or label:NAME.", show_default=False),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="List the entries of the total, each with its events.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of entries of --explain.")] = 100,
    output: UnnamedOutput = UnnamedFormat.TABLE,
) -> None:
    """Show slot-seconds and price in a range of time, in total and by group."""
    which = {"since": since, "to": to, "project": project, "sku": sku, "label": label}
    with session(context, output) as current:
        if explain:
            current.show_list(calls.usage_entries(**which), pages.entries, limit)
        else:
            page = partial(pages.usage, grouping=group_by)
            current.screen.one(current.send(calls.usage(**which, group_by=group_by)), page)
