"""The query parameter `at`: responses as of a position or a time in the past, and the headers that name the
position; and query parameters that are times.
"""

from datetime import datetime
from typing import Annotated, Any, Final, cast

from fastapi import Depends, Query, Request, Response
from pydantic import AfterValidator

from control_plane.decisions.refusals import Malformed, Objection
from control_plane.time_travel.moment import Moment, moment
from control_plane.time_travel.travel import Place, TimeTravel
from events.values import InvalidValue, Position

DESCRIPTION: Final = (
    "Return the state as of a time (RFC 3339; includes everything recorded until then) or as of `position:N`. The"
    " response headers `Sliceplane-Position` (`<epoch>.<position>` of the last event included, usable as a cursor of a"
    " watch) and `Sliceplane-Time` (when that event was recorded) name the exact state. 409 for a future time or"
    " position."
)


def checked(raw: str | None) -> str | None:
    """Return the text unchanged if it is a time or a position. Raises `InvalidValue`."""
    if raw is not None:
        moment(raw)
    return raw


def _at(
    at: Annotated[str | None, Query(max_length=64, description=DESCRIPTION), AfterValidator(checked)] = None,
) -> Moment | None:
    return None if at is None else moment(at)


At = Annotated[Moment | None, Depends(_at)]
From = Annotated[
    str | None,
    Query(
        alias="from",
        max_length=64,
        description="Begin after this time or position, in the form of `at`. Default: the beginning of the ledger.",
    ),
    AfterValidator(checked),
]
To = Annotated[
    str | None,
    Query(max_length=64, description="End at this time or position, in the form of `at`. Default: now."),
    AfterValidator(checked),
]


def time_of(raw: str | None) -> datetime | None:
    """Parse a query parameter that is a time, if it is given. Raises `InvalidValue` also for a position."""
    if raw is None:
        return None
    found = moment(raw)
    if not isinstance(found, datetime):
        raise InvalidValue("time", raw[:64], "use a time such as 2026-11-21T09:30:00Z (RFC 3339)")
    return found


def checked_time(raw: str | None) -> str | None:
    """Return the text unchanged if it is a time. Raises `InvalidValue`."""
    time_of(raw)
    return raw


Time = Annotated[str | None, AfterValidator(checked_time)]


def timed(name: str, description: str) -> Any:
    """Return the description of a query parameter of the type `Time`."""
    return Query(alias=name, max_length=64, description=f"{description} (RFC 3339).")


def range_of(from_: str | None, to: str | None) -> tuple[Moment, Moment | None]:
    """Parse the query parameters `from` and `to` of a history request; a `to` of None means now."""
    return Position(0) if from_ is None else moment(from_), None if to is None else moment(to)


def refuse_reversed_range(start: Position, end: Position) -> None:
    """Check that a range does not end before it begins. Raises `Malformed`."""
    if start > end:
        reason = f"'from' is position {start}, which is after position {end} of 'to'; swap them"
        raise Malformed(Objection("range_reversed", reason, parameter="from"))


def travel_of(request: Request) -> TimeTravel:
    return cast(TimeTravel, request.app.state.travel)


def set_headers(response: Response, place: Place) -> None:
    """Set the response headers that name the position of the returned state."""
    last = place.last
    response.headers["Sliceplane-Position"] = "0.0" if last is None else str(last.cursor)
    if last is not None:
        response.headers["Sliceplane-Time"] = last.recorded_at.isoformat()
