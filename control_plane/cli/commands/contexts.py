"""`sliceplane login`, `sliceplane logout` and `sliceplane contexts`: named control planes and their credentials."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import RenderableType

from control_plane.cli.access import checked_url, own_contexts_file, read_ca
from control_plane.cli.contexts import Context, Contexts, read_contexts, write_contexts
from control_plane.cli.credentials import CredentialSource, KeyFromInput, TypedKey
from control_plane.cli.failures import WrongUsage
from control_plane.cli.options import Output
from control_plane.cli.pages.tables import nothing, table
from control_plane.cli.screen import Format
from control_plane.cli.session import options, refuse_as_curl, screen
from control_plane.client import calls
from control_plane.client.exchange import Reply
from control_plane.client.sync import Client

commands = typer.Typer(no_args_is_help=True)
Name = Annotated[str, typer.Argument(metavar="CONTEXT", help="Name of a context, such as lab.")]
_DEFAULT = "default"


class _Row(msgspec.Struct, frozen=True):
    """A context as it is shown: without its credential."""

    name: str
    url: str
    project: str | None
    current: bool
    logged_in: bool


def login(
    context: typer.Context,
    *,
    name: Annotated[
        str | None,
        typer.Option(
            "--context", help="Name of the context.", show_default="the current context, or 'default'"
        ),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="URL of the control plane.", show_default="that of the context")
    ] = None,
    ca: Annotated[
        Path | None,
        typer.Option(
            help="CA bundle (PEM) that verifies the control plane.", show_default="that of the context"
        ),
    ] = None,
    project: Annotated[
        str | None, typer.Option(help="Project of commands in this context.", show_default=False)
    ] = None,
    with_key: Annotated[
        bool, typer.Option("--with-key", help="Read the API key from standard input.")
    ] = False,
) -> None:
    """Log in to a control plane: store its URL and an API key in a context, and make it the current one.

    Asks for the key on the terminal. The control plane must accept the key.
    """
    with screen(Format.TABLE) as made:
        refuse_as_curl(context, "login")
        before, path = options(context), own_contexts_file()
        stored = read_contexts(path)
        name = name or before.context or stored.current or _DEFAULT
        known = stored.contexts.get(name)
        url = checked_url(url or before.url) or (known.url if known else None)
        if url is None:
            raise WrongUsage("the URL of the control plane is missing", "sliceplane login --url URL")
        ca_file = ca or before.ca
        pem = read_ca(ca_file) if ca_file else (known.ca if known and known.url == url else None)
        source: CredentialSource = KeyFromInput() if with_key else TypedKey()
        credential = source.obtain(url)
        with Client(url, credential.key, ca=pem) as client:
            caller = client.run(calls.whoami())
        made_context = Context(
            url, credential, pem, project or before.project or (known.project if known else None)
        )
        write_contexts(path, stored.with_context(name, made_context, current=True))
        made.page(f"logged in to {url} as {caller.actor}, role {caller.role}; the current context is {name}")


def logout(context: typer.Context) -> None:
    """Remove the key of the current context, or of --context. The context itself remains."""
    with screen(Format.TABLE) as made:
        path = own_contexts_file()
        stored = read_contexts(path)
        name = options(context).context or stored.current
        if name is None:
            raise WrongUsage("there is no current context", "name one: sliceplane --context CONTEXT logout")
        left = msgspec.structs.replace(stored.named(name), credential=None)
        write_contexts(path, stored.with_context(name, left, current=stored.current == name))
        made.page(f"removed the key of context {name}; the key itself is still valid")
        made.note("to revoke a key: sliceplane keys revoke KEY --reason TEXT")


@commands.command("list")
def list_contexts(*, output: Output = Format.TABLE) -> None:
    """List the contexts, without their keys."""
    with screen(output) as made:
        stored = read_contexts(own_contexts_file())
        rows = [Reply(msgspec.json.encode(row), _Row) for row in _rows(stored)]
        made.many(rows, _page)


@commands.command()
def use(*, name: Name) -> None:
    """Make a context the current one."""
    with screen(Format.TABLE) as made:
        path = own_contexts_file()
        stored = read_contexts(path)
        write_contexts(path, stored.with_context(name, stored.named(name), current=True))
        made.page(f"the current context is {name}")


@commands.command()
def remove(*, name: Name) -> None:
    """Remove a context with its key."""
    with screen(Format.TABLE) as made:
        path = own_contexts_file()
        write_contexts(path, read_contexts(path).without(name))
        made.page(f"removed the context {name}")


def _rows(stored: Contexts) -> list[_Row]:
    return [
        _Row(name, each.url, each.project, name == stored.current, each.credential is not None)
        for name, each in sorted(stored.contexts.items())
    ]


def _page(found: list[_Row]) -> RenderableType:
    rows = table("NAME", "URL", "PROJECT", "CURRENT", "KEY")
    for each in found:
        current, key = "yes" if each.current else "", "stored" if each.logged_in else "none"
        rows.add_row(each.name, each.url, each.project or "-", current, key)
    return rows if rows.row_count else nothing("no contexts", "sliceplane login --url URL")
