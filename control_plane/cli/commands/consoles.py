"""`sliceplane consoles`."""

from typing import Annotated

import typer

from control_plane.cli.options import Output, Why
from control_plane.cli.pages import access as pages
from control_plane.cli.screen import Format
from control_plane.cli.session import session
from control_plane.client import calls

commands = typer.Typer(no_args_is_help=True)


@commands.command("list")
def list_consoles(context: typer.Context, *, output: Output = Format.TABLE) -> None:
    """List the open console sessions of admins, oldest first."""
    with session(context, output) as current:
        current.screen.one(current.send(calls.consoles()), pages.consoles)


@commands.command()
def cut(
    context: typer.Context,
    *,
    name: Annotated[
        str, typer.Argument(metavar="CONSOLE", help="Id of a console session, as `consoles list` shows it.")
    ],
    reason: Why,
    output: Output = Format.TABLE,
) -> None:
    """Cut a console session. Its connection ends within a second, and an unused ticket is refused at once."""
    with session(context, output) as current:
        current.screen.one(current.send(calls.cut_console(name, reason)), pages.cut_console)
