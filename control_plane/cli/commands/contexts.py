"""`sliceplane login`, `sliceplane logout` and `sliceplane contexts`: named control planes and their credentials."""

import socket
from pathlib import Path
from typing import Annotated, Final, assert_never

import msgspec
import typer
from rich.console import RenderableType

from control_plane.cli.access import checked_url, own_contexts_file, read_ca
from control_plane.cli.contexts import (
    ApiKey,
    Context,
    Contexts,
    Credential,
    StoredSession,
    read_contexts,
    write_contexts,
)
from control_plane.cli.credentials import CredentialSource, KeyFromInput, TypedKey
from control_plane.cli.device_login import DeviceLogin
from control_plane.cli.failures import WrongUsage
from control_plane.cli.options import Output
from control_plane.cli.pages import words
from control_plane.cli.pages.tables import nothing, table
from control_plane.cli.screen import Format
from control_plane.cli.session import options, refuse_as_curl, screen
from control_plane.client import calls
from control_plane.client.bodies import StartSession
from control_plane.client.errors import SliceplaneError, Unauthorised
from control_plane.client.exchange import Reply
from control_plane.client.sync import Client

commands = typer.Typer(no_args_is_help=True)
Name = Annotated[str, typer.Argument(metavar="CONTEXT", help="Name of a context, such as lab.")]
_DEFAULT = "default"
_LABEL: Final = 100
"""Maximum length of the label of a session."""


class _Row(msgspec.Struct, frozen=True):
    """A context as `sliceplane contexts list` displays it, without its secret. `credential` is the kind of the stored
    credential: `key`, `session`, or null.
    """

    name: str
    url: str
    project: str | None
    current: bool
    logged_in: bool
    credential: str | None


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
    keep_key: Annotated[
        bool,
        typer.Option("--keep-key", help="Store the API key itself, for programs, and start no session."),
    ] = False,
    device: Annotated[
        bool,
        typer.Option("--device", help="Log in at an identity provider, with a browser on any machine."),
    ] = False,
    provider: Annotated[
        str | None,
        typer.Option(help="Name of the identity provider.", show_default="the only one of the control plane"),
    ] = None,
    provider_ca: Annotated[
        Path | None,
        typer.Option(help="CA bundle (PEM) that verifies the identity provider.", show_default=False),
    ] = None,
) -> None:
    """Log in to a control plane: store its URL and a session in a context, and make it the current one.

    Asks for an API key on the terminal, or with --device lets you log in at an identity provider. The key or token is
    exchanged for a session, and is not stored.
    """
    with screen(Format.TABLE) as made:
        refuse_as_curl(context, "login")
        if device and (with_key or keep_key):
            raise WrongUsage(
                "--device cannot be combined with --with-key or --keep-key, because a login with --device uses no API key",
                "omit --with-key and --keep-key, or omit --device",
            )
        before, path = options(context), own_contexts_file()
        stored = read_contexts(path)
        name = name or before.context or stored.current or _DEFAULT
        known = stored.contexts.get(name)
        url = checked_url(url or before.url) or (known.url if known else None)
        if url is None:
            raise WrongUsage(
                "the URL of the control plane is missing", "specify the URL: sliceplane login --url URL"
            )
        ca_file = ca or before.ca
        pem = read_ca(ca_file) if ca_file else (known.ca if known and known.url == url else None)
        source: CredentialSource = KeyFromInput() if with_key else TypedKey()
        if device:
            source = DeviceLogin(provider, pem, read_ca(provider_ca) if provider_ca else None, made.note)
        secret = source.obtain(url)
        with Client(url, secret, ca=pem) as client:
            credential, caller = _stored_key(client, secret) if keep_key else _new_session(client)
        made_context = Context(
            url, credential, pem, project or before.project or (known.project if known else None)
        )
        write_contexts(path, stored.with_context(name, made_context, current=True))
        made.page(f"logged in to {url} as {caller}; the current context is {name}")


def _stored_key(client: Client, key: str) -> tuple[Credential, str]:
    """Return an API key that the control plane accepts, and a description of its caller."""
    caller = client.run(calls.whoami())
    return ApiKey(key), f"{caller.actor}, role {caller.role}"


def _new_session(client: Client) -> tuple[Credential, str]:
    """Start a session, and return it with a description of its caller."""
    label = f"sliceplane on {socket.gethostname()}"[:_LABEL]
    made = client.run(calls.start_session(StartSession(label=label)))
    caller = f"{made.actor}, role {made.role}, until {words.clock(made.expires_at)}"
    return StoredSession(made.id, made.secret), caller


def logout(context: typer.Context) -> None:
    """End the session of the current context, or of --context, and remove it from the context. The context itself
    remains.
    """
    with screen(Format.TABLE) as made:
        refuse_as_curl(context, "logout")
        path = own_contexts_file()
        stored = read_contexts(path)
        name = options(context).context or stored.current
        if name is None:
            raise WrongUsage(
                "there is no current context", "specify a context: sliceplane --context CONTEXT logout"
            )
        found = stored.named(name)
        error = _end(found, found.credential) if isinstance(found.credential, StoredSession) else None
        left = msgspec.structs.replace(found, credential=None)
        write_contexts(path, stored.with_context(name, left, current=stored.current == name))
        match found.credential:
            case None:
                made.page(f"context {name} has no credential")
            case ApiKey():
                made.page(f"removed the key of context {name}; the key itself is still valid")
                made.note("to revoke a key: sliceplane keys revoke KEY --reason TEXT")
            case StoredSession() if error is None:
                made.page(f"logged out of {found.url}; the session of context {name} has ended")
            case StoredSession(id=session):
                made.page(f"removed the session of context {name}; it is valid until it expires")
                made.warn(f"the session {session} could not be ended: {error}")
            case other:
                assert_never(other)


def _end(context: Context, session: StoredSession) -> SliceplaneError | None:
    """End a session. Return the error if this failed, else None. A session that the control plane refuses has ended
    already.
    """
    try:
        with Client(context.url, session.secret, ca=context.ca) as client:
            client.run(calls.end_session(session.id, "logged out"))
    except Unauthorised:
        return None
    except SliceplaneError as error:
        return error
    return None


@commands.command("list")
def list_contexts(*, output: Output = Format.TABLE) -> None:
    """List the contexts, without their secrets."""
    with screen(output) as made:
        stored = read_contexts(own_contexts_file())
        rows = [Reply(msgspec.json.encode(row), _Row) for row in _rows(stored)]
        made.many(rows, _page)


@commands.command()
def use(context: typer.Context, *, name: Name) -> None:
    """Make a context the current one."""
    with screen(Format.TABLE) as made:
        refuse_as_curl(context, "contexts use")
        path = own_contexts_file()
        stored = read_contexts(path)
        write_contexts(path, stored.with_context(name, stored.named(name), current=True))
        made.page(f"the current context is {name}")


@commands.command()
def remove(context: typer.Context, *, name: Name) -> None:
    """Remove a context with its credential. A session in it is not ended: log out first."""
    with screen(Format.TABLE) as made:
        refuse_as_curl(context, "contexts remove")
        path = own_contexts_file()
        write_contexts(path, read_contexts(path).without(name))
        made.page(f"removed the context {name}")


def _rows(stored: Contexts) -> list[_Row]:
    return [
        _Row(
            name,
            each.url,
            each.project,
            name == stored.current,
            each.credential is not None,
            _kind(each.credential),
        )
        for name, each in sorted(stored.contexts.items())
    ]


def _kind(credential: Credential | None) -> str | None:
    if credential is None:
        return None
    return "key" if isinstance(credential, ApiKey) else "session"


def _page(found: list[_Row]) -> RenderableType:
    rows = table("NAME", "URL", "PROJECT", "CURRENT", "CREDENTIAL")
    for each in found:
        current = "yes" if each.current else ""
        rows.add_row(each.name, each.url, each.project or "-", current, each.credential or "none")
    return rows if rows.row_count else nothing("no contexts", "sliceplane login --url URL")
