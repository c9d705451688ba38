"""`/v1/events`: list and watch the events of the ledger."""

from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse

from control_plane.api.filters.events import After, LastEventId, Picked, held, limited
from control_plane.api.requests.access import AuthenticatedRoute, Caller, access, credential_of
from control_plane.api.requests.as_of import From, To, range_of, refuse_reversed_range, travel_of
from control_plane.api.requests.pages import Limit, Order, Page, event_page, page_of_newest
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import feed_of
from control_plane.api.routes.ledger.watch import STREAMED, event_stream, watch
from control_plane.api.views.views import EventView
from control_plane.decisions.access import Scope
from events.values import Position

NEWEST_WINDOWS: Final = 10
"""Maximum number of ledger ranges that are scanned for one page of the newest events: a search that takes several
pages can show its progress.
"""
router = APIRouter(prefix="/v1/events", tags=["events"], responses=PROBLEMS, route_class=AuthenticatedRoute)


@router.get("", openapi_extra=access(Scope.EVENTS_READ))
async def list_events(
    request: Request,
    principal: Caller,
    pick: Picked,
    *,
    after: After = None,
    cursor: After = None,
    from_: From = None,
    to: To = None,
    limit: Limit = 200,
    order: Order = "asc",
) -> Page[EventView]:
    """List final events in ledger order, after a position or between two positions, optionally filtered.

    If a filter matches few events, a page may be short or empty without being the last.
    """
    feed, pick = feed_of(request), limited(pick, principal)
    begin, end = await _range(request, from_, to)
    if order == "desc":
        last = await held(request, cursor)
        before = Position(end + 1) if cursor is None else min(last.position, Position(end + 1))
        begin = max((await held(request, after)).position, begin)
        return page_of_newest(await feed.past.newest(pick, begin, before, limit, NEWEST_WINDOWS), begin)
    held_at = await held(request, cursor or after)
    found = await feed.past.full_page(pick, max(held_at.position, begin), end, limit)
    return event_page(found, end)


async def _range(request: Request, from_: str | None, to: str | None) -> tuple[Position, Position]:
    """Return the position after which a list of events begins, and the position at which it ends."""
    if from_ is None and to is None:
        return Position(0), await feed_of(request).up_to_date()
    begin, end = await travel_of(request).positions(*range_of(from_, to))
    refuse_reversed_range(begin, end)
    return begin, end


@router.get(
    "/watch", response_class=StreamingResponse, responses=STREAMED, openapi_extra=access(Scope.EVENTS_READ)
)
async def watch_events(
    request: Request, principal: Caller, pick: Picked, after: After = None, last_event_id: LastEventId = None
) -> StreamingResponse:
    """Stream events as they become final, after `Last-Event-ID` or `after`, optionally filtered."""
    start = await held(request, last_event_id or after)
    chosen = limited(pick, principal)
    return event_stream(watch(feed_of(request), start.position, chosen, credential_of(request)))
