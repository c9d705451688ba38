"""`sliceplane history`."""

from typing import Annotated

import typer

from control_plane.cli.answers import decode
from control_plane.cli.moments import At, From, To, counted_from
from control_plane.cli.options import AsJson
from control_plane.cli.pages import history as pages
from control_plane.cli.pasts import Changes, History, Kind
from control_plane.cli.paths import history_path
from control_plane.cli.session import session

commands = typer.Typer(no_args_is_help=True)
Of = Annotated[Kind, typer.Argument(metavar="KIND", help="allocation, slot, node, address or mapping.")]
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Such as alc-..., lab-a/0, lab-a, 10.100.1.10 or 52:54:00:...")
]


@commands.command()
def show(context: typer.Context, kind: Of, name: Name, *, at: At = None, as_json: AsJson = False) -> None:
    """What was true of something: at a time, at a position of the ledger, or now by the ledger alone."""
    with session(context, json=as_json) as here:
        raw = here.client.get(history_path(kind, name), {"at": at})
        if as_json:
            here.screen.document(raw)
        else:
            here.screen.rows(pages.history(decode(raw, History), counted_from(at, here.client.recorded)))
            # The page begins with the moment that it is of.
            here.client.asides.clear()


@commands.command()
def diff(
    context: typer.Context,
    kind: Of,
    name: Name,
    *,
    since: From = None,
    to: To = None,
    limit: Annotated[
        int, typer.Option(min=1, max=500, help="At most so many events, the oldest first.")
    ] = 200,
    as_json: AsJson = False,
) -> None:
    """What changed between two places in the past: each event, who caused it and why, and what it changed."""
    with session(context, json=as_json) as here:
        params = {"from": since, "to": to, "limit": limit}
        raw = here.client.get(history_path(kind, name, "changes"), params)
        if as_json:
            here.screen.document(raw)
            return
        found = decode(raw, Changes)
        here.screen.rows(pages.changes(found))
        if found.next_from:
            here.screen.note(f"there is more: --from {found.next_from}")
