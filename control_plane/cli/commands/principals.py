"""`sliceplane principals`."""

from typing import Annotated

import typer

from control_plane.cli.options import Output, Why
from control_plane.cli.pages import access as pages
from control_plane.cli.screen import Format
from control_plane.cli.session import session
from control_plane.client import calls
from control_plane.client.bodies import RevokePrincipal

commands = typer.Typer(no_args_is_help=True)


@commands.callback()
def _group() -> None:
    """Make `revoke` a subcommand: Typer would otherwise merge a single command into the group."""


@commands.command()
def revoke(
    context: typer.Context,
    *,
    actor: Annotated[
        str,
        typer.Argument(
            metavar="ACTOR",
            help="Caller as events show it, such as user:corp/alice, service-account:deployer or key:ci-0c1d2e3f4a5b.",
        ),
    ],
    reason: Why,
    output: Output = Format.TABLE,
) -> None:
    """Refuse every credential that a caller has now: its tokens, its service account's keys, or its API key.

    A token that is issued later is accepted, so block the caller at its identity provider first.
    """
    with session(context, output) as current:
        reply = current.send(calls.revoke_principal(RevokePrincipal(actor=actor, reason=reason)))
        current.screen.one(reply, pages.revoked_principal)
