"""`/v1/events/{position}/causes`: what led to an event, and what followed from it."""

from typing import Annotated, Final

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel

from control_plane.api.filters.events import limited
from control_plane.api.requests.access import AuthenticatedRoute, Caller, access
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import feed_of, plane_of
from control_plane.api.views.causes import causes_of
from control_plane.api.views.views import EventView, event_view
from control_plane.decisions.access import Scope
from control_plane.decisions.refusals import Objection, UnknownName
from events.ledger.search import EventFilter, find_listed
from events.values import Position

router = APIRouter(prefix="/v1/events", tags=["events"], responses=PROBLEMS, route_class=AuthenticatedRoute)
MOST: Final = 200
"""Maximum number of related events that are read before an event, and after it."""
_LARGEST: Final = 2**63 - 1


class CausesView(BaseModel):
    """An event, the events that led to it and those that followed from it. All of them have its correlation id.

    `causes` begins with the direct cause. `effects` are in ledger order, and the `causation_id` of each names the event
    that caused it. `others` are the other events with the correlation id, such as those of the same request. `complete`
    is false if there are more than 200 related events before or after the event: the nearest are returned.
    """

    event: EventView
    causes: list[EventView]
    effects: list[EventView]
    others: list[EventView]
    complete: bool


@router.get("/{position}/causes", openapi_extra=access(Scope.EVENTS_READ))
async def show_causes(
    request: Request, principal: Caller, position: Annotated[int, Path(ge=1, le=_LARGEST)]
) -> CausesView:
    """Return an event with its causes: the events that led to it, and the events that followed from it."""
    feed, own, place = feed_of(request), limited(EventFilter(), principal), Position(position)
    final = await feed.up_to_date()
    async with plane_of(request).engine.connect() as conn:
        found = (await find_listed(conn, own, [place], 1)).events if place <= final else ()
    if not found:
        reason = f"no event of your projects has the position {position}"
        raise UnknownName(Objection("unknown_event", reason, parameter="position"))
    [event] = found
    related = own._replace(correlations=frozenset({event.cause.correlation_id}))
    before = await feed.past.newest(related, Position(0), place, MOST)
    after = await feed.past.full_page(related, place, final, MOST)
    causes = causes_of(event, before.events[::-1], after.events)
    return CausesView(
        event=event_view(event),
        causes=[event_view(each) for each in causes.causes],
        effects=[event_view(each) for each in causes.effects],
        others=[event_view(each) for each in causes.others],
        complete=before.reached <= 1 and after.reached >= final,
    )
