"""Commands of `sliceplane service-accounts`: create, list, show, disable and enable the identities of workloads."""

from typing import Annotated

import typer
from msgspec import UNSET

from control_plane.cli.options import Output, Why
from control_plane.cli.pages import access as pages
from control_plane.cli.screen import Format
from control_plane.cli.session import session
from control_plane.client import calls
from control_plane.client.bodies import CreateServiceAccount

commands = typer.Typer(no_args_is_help=True)
AccountId = Annotated[str, typer.Argument(metavar="ACCOUNT", help="Id of a service account, such as ci.")]


@commands.command("list")
def list_service_accounts(context: typer.Context, *, output: Output = Format.TABLE) -> None:
    """List service accounts with their state, role and projects."""
    with session(context, output) as current:
        current.show_list(calls.service_accounts(), pages.service_accounts)


@commands.command()
def show(context: typer.Context, *, account: AccountId, output: Output = Format.TABLE) -> None:
    """Show a service account."""
    with session(context, output) as current:
        current.screen.one(current.send(calls.service_account(account)), pages.service_account)


@commands.command()
def create(
    context: typer.Context,
    *,
    account: AccountId,
    role: Annotated[str, typer.Option(help="Role: caller, admin or auditor.")],
    project: Annotated[
        list[str] | None,
        typer.Option(help="Limit the account to this project; repeatable. Required for a caller."),
    ] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(help="Limit the account to this scope, such as allocations:read; repeatable."),
    ] = None,
    description: Annotated[str, typer.Option(help="What the workload does.", metavar="TEXT")] = "",
    output: Output = Format.TABLE,
) -> None:
    """Create a service account with its role. Issue a key for it: keys issue NAME --service-account ACCOUNT."""
    body = CreateServiceAccount(
        id=account,
        role=role,
        description=description,
        projects=project or UNSET,
        scopes=scope or UNSET,
    )
    with session(context, output) as current:
        current.screen.one(current.send(calls.create_service_account(body)), pages.service_account)


@commands.command()
def disable(
    context: typer.Context, *, account: AccountId, reason: Why, output: Output = Format.TABLE
) -> None:
    """Disable a service account. Its keys are refused at once."""
    with session(context, output) as current:
        current.screen.one(
            current.send(calls.disable_service_account(account, reason)), pages.service_account
        )


@commands.command()
def enable(context: typer.Context, *, account: AccountId, output: Output = Format.TABLE) -> None:
    """Enable a service account. Its keys that are not revoked or expired are accepted again."""
    with session(context, output) as current:
        current.screen.one(current.send(calls.enable_service_account(account)), pages.service_account)
