"""Commands of `sliceplane events`: list and follow the events of the ledger, and show the causes of an event."""

from typing import Annotated

import typer

from control_plane.cli.options import (
    Actors,
    After,
    AllProjects,
    Correlations,
    EventIds,
    Output,
    Projects,
    Streams,
    Types,
    UnnamedOutput,
)
from control_plane.cli.pages import causes as pages
from control_plane.cli.pages import event_line
from control_plane.cli.screen import Format, UnnamedFormat
from control_plane.cli.session import Session, session
from control_plane.cli.times import From, To
from control_plane.client import calls
from control_plane.client.answers import Event
from control_plane.client.exchange import ListCall
from control_plane.client.streams import Following

commands = typer.Typer(no_args_is_help=True)


def show_events(current: Session, call: ListCall[Event], limit: int | None = None, of: str = "") -> None:
    """Print the events of a list as they arrive. `of` is the name of the one resource that all of them concern; empty
    if there is none.
    """
    if current.screen.machine:
        current.show_list(call, lambda _: "", limit)
        return
    listing, none = current.listing(call, limit), True
    for reply in listing:
        none = False
        current.screen.rows(event_line.line(reply.value, of))
    current.noted(listing)
    if none:
        current.screen.note("no matching events")


def _projects(current: Session, named: list[str] | None, *, every: bool) -> list[str] | None:
    """Return the projects to filter by: the named ones, else that of --project or the context. None: all projects."""
    if named or every or current.access.project is None:
        return named
    return [current.access.project]


@commands.command("list")
def list_events(
    context: typer.Context,
    *,
    after: After = None,
    stream: Streams = None,
    type_: Types = None,
    project: Projects = None,
    actor: Actors = None,
    correlation: Correlations = None,
    id_: EventIds = None,
    since: From = None,
    to: To = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of events, oldest first.")] = 200,
    all_projects: AllProjects = False,
    output: Output = Format.TABLE,
) -> None:
    """List events of the ledger in order, optionally between two times and filtered."""
    with session(context, output) as current:
        filters = calls.event_filters(
            after=after,
            streams=stream,
            types=type_,
            projects=_projects(current, project, every=all_projects),
            actors=actor,
            correlations=correlation,
            ids=id_,
        )
        show_events(current, calls.events(filters, since=since, to=to), limit)


@commands.command()
def follow(
    context: typer.Context,
    *,
    after: After = None,
    stream: Streams = None,
    type_: Types = None,
    project: Projects = None,
    actor: Actors = None,
    correlation: Correlations = None,
    id_: EventIds = None,
    all_projects: AllProjects = False,
    output: Output = Format.TABLE,
) -> None:
    """Follow the ledger from its beginning or from --after, across lost connections, until Ctrl-C.

    Exit code 1 if the ledger no longer contains the last event received, after a restore from a backup.
    """
    with session(context, output) as current:
        filters = calls.event_filters(
            after=after,
            streams=stream,
            types=type_,
            projects=_projects(current, project, every=all_projects),
            actors=actor,
            correlations=correlation,
            ids=id_,
        )
        screen = current.screen
        following = Following(
            on_lost=lambda lost: screen.note(f"connection lost, retrying: {lost.what}"),
            on_back=lambda: screen.note("reconnected"),
        )
        for reply in current.follow(calls.watch_events(filters), following):
            screen.each(reply, event_line.line)


@commands.command()
def causes(
    context: typer.Context,
    position: Annotated[int, typer.Argument(metavar="POSITION", min=1, help="Position of the event.")],
    *,
    output: UnnamedOutput = UnnamedFormat.TABLE,
) -> None:
    """Show what led to an event, and what followed from it, each event indented below its cause."""
    with session(context, output) as current:
        reply = current.send(calls.causes(position))
        if current.screen.machine:
            current.screen.document(reply.raw)
            return
        current.screen.rows(pages.tree(reply.value))
        if not reply.value.complete:
            current.screen.note("not all related events are shown")
