"""`?at=`: an answer as of a place in the past, and what the answer says about that place."""

from typing import Annotated, Final, cast

from fastapi import Depends, Query, Request, Response
from pydantic import AfterValidator

from control_plane.decisions.refusals import Malformed, Objection
from control_plane.time_travel.asked import Asked, asked
from control_plane.time_travel.travel import Place, TimeTravel
from events.values import Position

DESCRIPTION: Final = (
    "As of then: a time (RFC 3339; everything recorded until then) or `position:N`. The answer's headers"
    " `Sliceplane-Position` (`<epoch>.<position>` of the last event until then, a cursor for watching on) and"
    " `Sliceplane-Time` (when that was recorded) say what it is of. 409 for what is still to come."
)


def checked(raw: str | None) -> str | None:
    """The same, if it names a place. Raises `InvalidValue`."""
    if raw is not None:
        asked(raw)
    return raw


def _at(
    at: Annotated[str | None, Query(max_length=64, description=DESCRIPTION), AfterValidator(checked)] = None,
) -> Asked | None:
    return None if at is None else asked(at)


At = Annotated[Asked | None, Depends(_at)]
From = Annotated[
    str | None,
    Query(
        alias="from",
        max_length=64,
        description="Behind this place, named as in `at`; else from the beginning.",
    ),
    AfterValidator(checked),
]
To = Annotated[
    str | None,
    Query(max_length=64, description="Up to this place, named as in `at`; else up to now."),
    AfterValidator(checked),
]


def stretch_of(from_: str | None, to: str | None) -> tuple[Asked, Asked | None]:
    """What `From` and `To` name; no end means now."""
    return Position(0) if from_ is None else asked(from_), None if to is None else asked(to)


def refuse_backwards(start: Position, end: Position) -> None:
    """Raises `Malformed` when a stretch would end before it begins."""
    if start > end:
        why = f"it is position {start}, which is behind position {end}, where the stretch ends"
        raise Malformed(Objection("from_behind_to", why, parameter="from"))


def travel_of(request: Request) -> TimeTravel:
    return cast(TimeTravel, request.app.state.travel)


def say(response: Response, place: Place) -> None:
    """Name the place that the answer is of."""
    last = place.last
    response.headers["Sliceplane-Position"] = "0.0" if last is None else str(last.cursor)
    if last is not None:
        response.headers["Sliceplane-Time"] = last.recorded_at.isoformat()
