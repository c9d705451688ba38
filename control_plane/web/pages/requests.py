"""One request of the API: its row of the access log, and the events that it caused."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

from control_plane.web.pages.ids_in_events import REQUEST, Event, events_of_request
from control_plane.web.visits import Visit, both, nothing, problem


async def show(visit: Visit) -> Response:
    name = visit.request.path_params["request"]
    row, events = await found(visit, name) if REQUEST.fullmatch(name) else (None, ())
    if row is None and not events:
        message = f"no request that you may read has the id {name[:64]!r}"
        hint = "Check the id. Old requests, and those in progress, are not found."
        raise problem(HTTPStatus.NOT_FOUND, "unknown_request", message, hint)
    return visit.render("request.html", name=name, row=row, events=events)


async def found(visit: Visit, name: str) -> tuple[Any, Sequence[Event]]:
    """Return the row of a request in the access log, and the events that it caused, as far as the caller may read
    them; None and no events for an unknown id.
    """
    rows, events = await both(
        visit.get("access-log", request_id=name, limit=1) if visit.allows("access:read") else nothing(),
        events_of_request(visit, name) if visit.allows("events:read") else nothing(),
    )
    return rows["items"][0] if rows and rows["items"] else None, events or ()
