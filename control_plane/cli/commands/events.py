"""`sliceplane events`."""

from collections.abc import Iterable
from typing import Annotated

import msgspec
import typer

from control_plane.cli.answers import Event, decode
from control_plane.cli.client import Params
from control_plane.cli.follow import Follower
from control_plane.cli.options import Actors, After, AsJson, Correlations, Projects, Streams, Types
from control_plane.cli.pages import event_line
from control_plane.cli.screen import Screen
from control_plane.cli.session import session
from control_plane.cli.times import From, To

commands = typer.Typer(no_args_is_help=True)


def show_events(screen: Screen, items: Iterable[msgspec.Raw], of: str = "") -> None:
    """Print a complete list of events. `of` is the resource that all of them concern, if there is one."""
    if screen.json:
        screen.documents(items)
        return
    none = True
    for item in items:
        none = False
        screen.rows(event_line.line(decode(item, Event), of))
    if none:
        screen.note("no matching events")


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
    since: From = None,
    to: To = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of events, oldest first.")] = 200,
    as_json: AsJson = False,
) -> None:
    """List events of the ledger in order, optionally between two times and filtered."""
    picked = _picked(after, stream=stream, type=type_, project=project, actor=actor, correlation=correlation)
    with session(context, json=as_json) as current:
        show_events(
            current.screen, current.client.items("/v1/events", {**picked, "from": since, "to": to}, limit)
        )


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
    as_json: AsJson = False,
) -> None:
    """Follow the ledger from its beginning or from --after, across lost connections, until Ctrl-C.

    Exit code 1 if the ledger no longer contains the last event received, after a restore from a backup.
    """
    picked = _picked(after, stream=stream, type=type_, project=project, actor=actor, correlation=correlation)
    with session(context, json=as_json) as current:
        screen = current.screen
        follower = Follower(
            current.client,
            "/v1/events/watch",
            picked,
            on_lost=lambda lost: screen.note(f"connection lost, retrying: {lost.what}"),
            on_back=lambda: screen.note("reconnected"),
        )
        for raw in follower:
            if as_json:
                screen.line(raw)
            else:
                screen.rows(event_line.line(decode(raw, Event)))


def _picked(after: str | None, **traits: list[str] | None) -> Params:
    """Return the query parameters that filter events by the given traits."""
    return {"after": after, **{name: values or None for name, values in traits.items()}}
