"""Options that several commands share."""

import re
from typing import Annotated, Final

import typer

from control_plane.cli.request import seconds
from control_plane.cli.screen import Format, UnnamedFormat

_CURSOR: Final = re.compile(r"(?:position:|[0-9]+\.)[0-9]+")


def _place(given: str | None) -> str | None:
    """Convert the id of an event, or a position, to a cursor in the format of the API. Raises `typer.BadParameter`."""
    if given is None or _CURSOR.fullmatch(given):
        return given
    if given.isascii() and given.isdigit():
        return f"position:{given}"
    raise typer.BadParameter(
        f"{given!r} is neither a position, such as 7, nor the id of an event, such as 1.7"
    )


def _seconds(given: str) -> float:
    return float(seconds(given, "--timeout"))


_OUTPUT: Final = "Output format. All except table are for programs: without colour and progress."
Output = Annotated[Format, typer.Option("--output", "-o", help=_OUTPUT)]
UnnamedOutput = Annotated[UnnamedFormat, typer.Option("--output", "-o", help=_OUTPUT)]
Timeout = Annotated[
    float | None,
    typer.Option(
        metavar="TIME",
        parser=_seconds,
        help="Stop waiting after this time, such as 90s or 10m, with exit code 5.",
        show_default="unlimited",
    ),
]
AllProjects = Annotated[
    bool, typer.Option("--all-projects", help="All projects, not only that of --project or the context.")
]
After = Annotated[
    str | None,
    typer.Option(
        callback=_place,
        metavar="PLACE",
        help="Only events after this position or this event id.",
        show_default=False,
    ),
]
Streams = Annotated[
    list[str] | None,
    typer.Option(
        "--stream", help="Only events of this stream, such as slot-lab-a/0; repeatable.", show_default=False
    ),
]
Types = Annotated[
    list[str] | None,
    typer.Option(
        "--type", help="Only events of this type, such as slot.claimed; repeatable.", show_default=False
    ),
]
Projects = Annotated[
    list[str] | None,
    typer.Option("--project", help="Only events of this project; repeatable.", show_default=False),
]
Actors = Annotated[
    list[str] | None,
    typer.Option(
        "--actor",
        help="Only events caused by this actor, such as node:lab-a; repeatable.",
        show_default=False,
    ),
]
Correlations = Annotated[
    list[str] | None,
    typer.Option(
        "--correlation", help="Only events with this correlation id; repeatable.", show_default=False
    ),
]
EventIds = Annotated[
    list[str] | None,
    typer.Option("--id", help="Only the event with this id; repeatable.", show_default=False),
]
AllocationId = Annotated[str, typer.Argument(metavar="ALLOCATION", help="Id of an allocation, alc-...")]
NodeId = Annotated[str, typer.Argument(metavar="NODE", help="Id of a node, such as lab-a.")]
Why = Annotated[
    str, typer.Option(help="Reason for the action; it is recorded in the ledger.", metavar="TEXT")
]
