"""Commands of `sliceplane principals`: revoke the credentials of a caller, and set and show its limits."""

from typing import Annotated

import typer
from msgspec import UNSET

from control_plane.cli.options import Output, Why
from control_plane.cli.pages import access as pages
from control_plane.cli.screen import Format
from control_plane.cli.session import session
from control_plane.client import calls
from control_plane.client.bodies import RevokePrincipal, SetPrincipalLimits

commands = typer.Typer(no_args_is_help=True)
limit_commands = typer.Typer(no_args_is_help=True)
commands.add_typer(limit_commands, name="limits", help="Set and show the limits of a caller.")
Actor = Annotated[
    str,
    typer.Argument(
        metavar="ACTOR",
        help="Caller as events show it, such as user:corp/alice, service-account:deployer or key:ci-0c1d2e3f4a5b.",
    ),
]


@commands.command()
def revoke(
    context: typer.Context,
    *,
    actor: Actor,
    reason: Why,
    output: Output = Format.TABLE,
) -> None:
    """Refuse every credential that a caller has now: its tokens, its service account's keys, or its API key.

    A token that is issued later is accepted, so block the caller at its identity provider first.
    """
    with session(context, output) as current:
        reply = current.send(calls.revoke_principal(RevokePrincipal(actor=actor, reason=reason)))
        current.screen.one(reply, pages.revoked_principal)


@limit_commands.command("set")
def set_limits(
    context: typer.Context,
    *,
    actor: Actor,
    slots: Annotated[int | None, typer.Option(help="Slots.", show_default="no limit")] = None,
    price_per_hour: Annotated[
        str | None, typer.Option(help="Sum of the prices per hour, such as 12.80.", show_default="no limit")
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Set all limits of a caller. A limit that is not given is removed, and existing allocations keep what they
    have.
    """
    body = SetPrincipalLimits(
        actor=actor,
        slots=UNSET if slots is None else slots,
        price_per_hour=price_per_hour or UNSET,
    )
    with session(context, output) as current:
        current.screen.one(current.send(calls.set_principal_limits(body)), pages.principal_limits)


@limit_commands.command("show")
def show_limits(context: typer.Context, *, actor: Actor, output: Output = Format.TABLE) -> None:
    """Show the limits of a caller and what the allocations that it requested use of them."""
    with session(context, output) as current:
        current.screen.one(current.send(calls.principal_limits(actor)), pages.principal_limits)
