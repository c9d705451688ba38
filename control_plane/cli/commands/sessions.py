"""Commands of `sliceplane sessions`: list and end the sessions of callers."""

from typing import Annotated

import typer

from control_plane.cli.options import Output, Why
from control_plane.cli.pages import access as pages
from control_plane.cli.screen import Format
from control_plane.cli.session import session
from control_plane.client import calls

commands = typer.Typer(no_args_is_help=True)


@commands.command("list")
def list_sessions(
    context: typer.Context,
    *,
    actor: Annotated[
        str | None,
        typer.Option(help="Only sessions of this caller, such as user:corp/alice.", show_default=False),
    ] = None,
    state: Annotated[
        str | None, typer.Option(help="Only in this state: active, ended or expired.", show_default=False)
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """List your sessions, or with the scope access:read those of all callers, oldest first."""
    with session(context, output) as current:
        current.show_list(calls.sessions(actor=actor, state=state), pages.sessions)


@commands.command()
def end(
    context: typer.Context,
    *,
    name: Annotated[
        str, typer.Argument(metavar="SESSION", help="Id of a session, as `sessions list` shows it.")
    ],
    reason: Why,
    output: Output = Format.TABLE,
) -> None:
    """End a session. It is refused at once."""
    with session(context, output) as current:
        current.screen.one(current.send(calls.end_session(name, reason)), pages.session)
