"""Commands of `sliceplane history`: show the past state of a resource, and the changes between two moments."""

from typing import Annotated

import typer

from control_plane.cli.holdings import SHOWN, holdings
from control_plane.cli.options import UnnamedOutput
from control_plane.cli.pages import history as pages
from control_plane.cli.screen import UnnamedFormat
from control_plane.cli.session import session
from control_plane.cli.times import At, From, To, counted_from, time_of
from control_plane.client import calls
from control_plane.client.history_answers import Kind

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
    context: typer.Context,
    kind: KindArgument,
    name: Name,
    *,
    at: At = None,
    output: UnnamedOutput = UnnamedFormat.TABLE,
) -> None:
    """Show the state of a resource at a time or a ledger position, or now, from the ledger alone.

    A slot or an address also has the table of the allocations that had it until then, with the reason of each end.
    """
    with session(context, output) as current:
        reply = current.send(calls.history(kind, name, at=at))
        # The heading of the page already names the position of the state.
        current.asides.clear()
        if current.screen.machine:
            current.screen.document(reply.raw)
            return
        held = holdings(current, reply.value, at)
        requested = time_of(at) if at else None
        current.screen.rows(pages.history(reply.value, held, counted_from(at, current.recorded), requested))
        for each in held:
            if each.has_more:
                command = (
                    f"sliceplane events list --stream slot-{each.slot} --type slot.claimed --all-projects"
                )
                current.screen.note(
                    f"only the newest {SHOWN} allocations of slot {each.slot} are shown; all claims: {command}"
                )


@commands.command()
def diff(
    context: typer.Context,
    kind: KindArgument,
    name: Name,
    *,
    since: From = None,
    to: To = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Maximum number of events, oldest first.")] = 200,
    output: UnnamedOutput = UnnamedFormat.TABLE,
) -> None:
    """Show what changed between two times or positions: each event with its actor, reason and changed fields."""
    with session(context, output) as current:
        reply = current.send(calls.changes(kind, name, since=since, to=to, limit=limit))
        if current.screen.machine:
            current.screen.document(reply.raw)
            return
        found = reply.value
        current.screen.rows(pages.changes(found))
        if found.next_from:
            current.screen.note(f"more results available: --from {found.next_from}")
