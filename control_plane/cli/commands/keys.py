"""`sliceplane keys` and `sliceplane whoami`."""

from typing import Annotated

import typer

from control_plane.cli.access_answers import Caller, IssuedKey, Key
from control_plane.cli.answers import decode
from control_plane.cli.options import AsJson, Why
from control_plane.cli.pages import access as pages
from control_plane.cli.paths import key_path
from control_plane.cli.request import seconds
from control_plane.cli.session import Session, session

commands = typer.Typer(no_args_is_help=True)
KeyId = Annotated[str, typer.Argument(metavar="KEY", help="Id of an API key, such as ci-0c1d2e3f4a5b.")]


@commands.command("list")
def list_keys(context: typer.Context, *, as_json: AsJson = False) -> None:
    """List API keys with their role, projects and expiry. Secrets are never shown."""
    with session(context, json=as_json) as current:
        items = current.client.items("/v1/keys")
        if as_json:
            current.screen.documents(items)
        else:
            current.screen.rows(pages.keys(decode(item, Key) for item in items))


@commands.command()
def show(context: typer.Context, *, key: KeyId, as_json: AsJson = False) -> None:
    """Show an API key, without its secret."""
    with session(context, json=as_json) as current:
        _print(current, current.client.get(key_path(key)))


@commands.command()
def issue(
    context: typer.Context,
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the owner, such as ci.")],
    role: Annotated[str, typer.Option(help="Role: caller, admin or auditor.")],
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
    as_json: AsJson = False,
) -> None:
    """Issue an API key. Prints its secret, which is shown only once."""
    body = {
        "name": name,
        "role": role,
        "projects": project or [],
        "scopes": scope or [],
        "lifetime_seconds": None if lifetime is None else seconds(lifetime),
    }
    with session(context, json=as_json) as current:
        _print_issued(current, current.client.post("/v1/keys", body))


@commands.command()
def rotate(
    context: typer.Context,
    *,
    key: KeyId,
    overlap: Annotated[
        str, typer.Option(help="Time for which the replaced key is still accepted, such as 1h.")
    ] = "1h",
    as_json: AsJson = False,
) -> None:
    """Replace an API key by a new one with the same role, projects and scopes. Prints the new secret."""
    with session(context, json=as_json) as current:
        body = {"overlap_seconds": seconds(overlap)}
        _print_issued(current, current.client.post(key_path(key, "rotate"), body))


@commands.command()
def revoke(context: typer.Context, *, key: KeyId, reason: Why, as_json: AsJson = False) -> None:
    """Revoke an API key. It is refused at once."""
    with session(context, json=as_json) as current:
        _print(current, current.client.post(key_path(key, "revoke"), {"reason": reason}))


def whoami(context: typer.Context, *, as_json: AsJson = False) -> None:
    """Show the role, projects and scopes of your API key."""
    with session(context, json=as_json) as current:
        raw = current.client.get("/v1/whoami")
        if as_json:
            current.screen.document(raw)
        else:
            current.screen.page(pages.caller(decode(raw, Caller)))


def _print(current: Session, raw: bytes) -> None:
    if current.screen.json:
        current.screen.document(raw)
    else:
        current.screen.page(pages.key(decode(raw, Key)))


def _print_issued(current: Session, raw: bytes) -> None:
    if current.screen.json:
        current.screen.document(raw)
        return
    current.screen.page(pages.issued_key(decode(raw, IssuedKey)))
    current.screen.note("the secret is not stored and not shown again")
