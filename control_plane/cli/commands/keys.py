"""Commands of `sliceplane keys`, which manage API keys, and the command `sliceplane whoami`, which shows the caller."""

from typing import Annotated

import typer
from msgspec import UNSET

from control_plane.cli.options import Output, Why
from control_plane.cli.pages import access as pages
from control_plane.cli.request import seconds
from control_plane.cli.screen import Format
from control_plane.cli.session import Session, session
from control_plane.client import calls
from control_plane.client.access_answers import IssuedKey
from control_plane.client.bodies import IssueKey, RotateKey
from control_plane.client.exchange import Reply

commands = typer.Typer(no_args_is_help=True)
KeyId = Annotated[str, typer.Argument(metavar="KEY", help="Id of an API key, such as ci-0c1d2e3f4a5b.")]


@commands.command("list")
def list_keys(context: typer.Context, *, output: Output = Format.TABLE) -> None:
    """List API keys with their role, projects and expiry. Secrets are never shown."""
    with session(context, output) as current:
        current.show_list(calls.keys(), pages.keys)


@commands.command()
def show(context: typer.Context, *, key: KeyId, output: Output = Format.TABLE) -> None:
    """Show an API key, without its secret."""
    with session(context, output) as current:
        current.screen.one(current.send(calls.key(key)), pages.key)


@commands.command()
def issue(
    context: typer.Context,
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the owner, such as ci.")],
    role: Annotated[
        str | None, typer.Option(help="Role: caller, admin or auditor. Required without --service-account.")
    ] = None,
    service_account: Annotated[
        str | None,
        typer.Option(
            metavar="ACCOUNT",
            help="Issue the key for this service account, with its role, projects and scopes.",
        ),
    ] = None,
    project: Annotated[
        list[str] | None,
        typer.Option(help="Limit the key to this project; repeatable. Required for a caller."),
    ] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(help="Limit the key to this scope, such as allocations:read; repeatable."),
    ] = None,
    lifetime: Annotated[
        str | None, typer.Option(help="Time until the key expires, such as 90d.", show_default="unlimited")
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Issue an API key. Prints its secret, which is shown only once."""
    body = IssueKey(
        name=name,
        role=role or UNSET,
        service_account=service_account or UNSET,
        projects=project or UNSET,
        scopes=scope or UNSET,
        lifetime_seconds=UNSET if lifetime is None else seconds(lifetime, "--lifetime"),
    )
    with session(context, output) as current:
        _print_issued(current, current.send(calls.issue_key(body)))


@commands.command()
def rotate(
    context: typer.Context,
    *,
    key: KeyId,
    overlap: Annotated[
        str, typer.Option(help="Time for which the replaced key is still accepted, such as 1h.")
    ] = "1h",
    output: Output = Format.TABLE,
) -> None:
    """Replace an API key by a new one with the same role, projects and scopes. Prints the new secret."""
    with session(context, output) as current:
        body = RotateKey(overlap_seconds=seconds(overlap, "--overlap"))
        _print_issued(current, current.send(calls.rotate_key(key, body)))


@commands.command()
def revoke(context: typer.Context, *, key: KeyId, reason: Why, output: Output = Format.TABLE) -> None:
    """Revoke an API key. It is refused at once."""
    with session(context, output) as current:
        current.screen.one(current.send(calls.revoke_key(key, reason)), pages.key)


def whoami(context: typer.Context, *, output: Output = Format.TABLE) -> None:
    """Show your role, projects and scopes, and the key or session that you use."""
    with session(context, output) as current:
        current.screen.one(current.send(calls.whoami()), pages.caller)


def _print_issued(current: Session, reply: Reply[IssuedKey]) -> None:
    current.screen.one(reply, pages.issued_key)
    current.screen.note("the secret is not stored and not shown again")
