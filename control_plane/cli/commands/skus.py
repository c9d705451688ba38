"""`sliceplane skus`."""

import typer

from control_plane.cli.options import Output
from control_plane.cli.pages import tables
from control_plane.cli.screen import Format
from control_plane.cli.session import session
from control_plane.client import calls

commands = typer.Typer(no_args_is_help=True)


@commands.callback()
def group() -> None:
    """List the slice sizes that can be requested."""


@commands.command("list")
def list_skus(context: typer.Context, *, output: Output = Format.TABLE) -> None:
    """List the slice sizes that can be requested, with their images."""
    with session(context, output) as current:
        current.show_list(calls.skus(), tables.skus)
