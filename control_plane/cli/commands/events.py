"""`sliceplane events`."""

from collections.abc import Iterable
from typing import Annotated

import msgspec
import typer

from control_plane.cli.answers import Event, decode
from control_plane.cli.client import Params
from control_plane.cli.follow import Follower
from control_plane.cli.moments import From, To
from control_plane.cli.options import Actors, After, AsJson, Correlations, Projects, Streams, Types
from control_plane.cli.pages import event_line
from control_plane.cli.screen import Screen
from control_plane.cli.session import session

commands = typer.Typer(no_args_is_help=True)


def show_events(screen: Screen, items: Iterable[msgspec.Raw], of: str = "") -> None:
    """A finished list of events, all of them about `of` where that is given."""
    if screen.json:
        screen.documents(items)
        return
    none = True
    for item in items:
        none = False
        screen.rows(event_line.line(decode(item, Event), of))
    if none:
        screen.note("no such events")


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
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the oldest first.")] = 200,
    as_json: AsJson = False,
) -> None:
    """A part of the ledger, in order: all of it, what happened between two times, or what the options pick."""
    picked = _picked(after, stream=stream, type=type_, project=project, actor=actor, correlation=correlation)
    with session(context, json=as_json) as here:
        show_events(here.screen, here.client.items("/v1/events", {**picked, "from": since, "to": to}, limit))


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
    """The ledger as it grows, from its beginning or from --after; goes on over lost connections until Ctrl-C.

    Ends with code 1 when the control plane can no longer go on from where it was: after a restore from a backup.
    """
    picked = _picked(after, stream=stream, type=type_, project=project, actor=actor, correlation=correlation)
    with session(context, json=as_json) as here:
        screen = here.screen
        follower = Follower(
            here.client,
            "/v1/events/watch",
            picked,
            on_lost=lambda lost: screen.note(f"connection lost, trying again: {lost.what}"),
            on_back=lambda: screen.note("connected again"),
        )
        for raw in follower:
            if as_json:
                screen.line(raw)
            else:
                screen.rows(event_line.line(decode(raw, Event)))


def _picked(after: str | None, **traits: list[str] | None) -> Params:
    """The query that asks for events with one of the values of each trait that has some."""
    return {"after": after, **{name: values or None for name, values in traits.items()}}
