"""Options that several commands share."""

import re
from typing import Annotated, Final

import typer

_CURSOR: Final = re.compile(r"(?:position:|[0-9]+\.)[0-9]+")


def _place(given: str | None) -> str | None:
    """A place in the ledger: an event's id, or a position."""
    if given is None or _CURSOR.fullmatch(given):
        return given
    if given.isascii() and given.isdigit():
        return f"position:{given}"
    raise typer.BadParameter(f"{given!r} is neither a position nor the id of an event, such as 7 or 1.7")


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs: no colour, no progress.")]
After = Annotated[
    str | None,
    typer.Option(
        callback=_place,
        metavar="PLACE",
        help="Only events behind this position, or this event's id.",
        show_default=False,
    ),
]
Streams = Annotated[
    list[str] | None,
    typer.Option(
        "--stream", help="Only of this stream, such as slot-lab-a/0; repeatable.", show_default=False
    ),
]
Types = Annotated[
    list[str] | None,
    typer.Option("--type", help="Only of this type, such as slot.claimed; repeatable.", show_default=False),
]
Projects = Annotated[
    list[str] | None, typer.Option("--project", help="Only of this project; repeatable.", show_default=False)
]
Actors = Annotated[
    list[str] | None,
    typer.Option("--actor", help="Only caused by, such as node:lab-a; repeatable.", show_default=False),
]
Correlations = Annotated[
    list[str] | None,
    typer.Option("--correlation", help="Only with this correlation id; repeatable.", show_default=False),
]
AllocationId = Annotated[str, typer.Argument(metavar="ALLOCATION", help="Id of an allocation, alc-...")]
NodeId = Annotated[str, typer.Argument(metavar="NODE", help="Id of a node, such as lab-a.")]
Why = Annotated[str, typer.Option(help="The reason, for the record.", metavar="TEXT")]
