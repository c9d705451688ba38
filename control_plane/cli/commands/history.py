"""`sliceplane history`."""

from typing import Annotated

import typer

from control_plane.cli.answers import decode
from control_plane.cli.history_answers import Changes, History, Kind
from control_plane.cli.options import AsJson
from control_plane.cli.pages import history as pages
from control_plane.cli.paths import history_path
from control_plane.cli.session import session
from control_plane.cli.times import At, From, To, counted_from

commands = typer.Typer(no_args_is_help=True)
KindArgument = Annotated[
    Kind, typer.Argument(metavar="KIND", help="allocation, slot, node, address, ingress or device.")
]
Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="Name of the resource, such as alc-..., lab-a/0, lab-a, 10.100.1.10 or 52:54:00:...",
    ),
]


@commands.command()
def show(
    context: typer.Context, kind: KindArgument, name: Name, *, at: At = None, as_json: AsJson = False
) -> None:
    """Show the state of a resource at a time or a ledger position, or now, from the ledger alone."""
    with session(context, json=as_json) as current:
        raw = current.client.get(history_path(kind, name), {"at": at})
        if as_json:
            current.screen.document(raw)
        else:
            current.screen.rows(
                pages.history(decode(raw, History), counted_from(at, current.client.recorded))
            )
            # The heading of the page already names the position of the state.
            current.client.asides.clear()


@commands.command()
def diff(
    context: typer.Context,
    kind: KindArgument,
    name: Name,
    *,
    since: From = None,
    to: To = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Maximum number of events, oldest first.")] = 200,
    as_json: AsJson = False,
) -> None:
    """Show what changed between two times or positions: each event with its actor, reason and changed fields."""
    with session(context, json=as_json) as current:
        params = {"from": since, "to": to, "limit": limit}
        raw = current.client.get(history_path(kind, name, "changes"), params)
        if as_json:
            current.screen.document(raw)
            return
        found = decode(raw, Changes)
        current.screen.rows(pages.changes(found))
        if found.next_from:
            current.screen.note(f"more results available: --from {found.next_from}")
