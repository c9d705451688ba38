"""`/v1/events`: the ledger itself, read and watched."""

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse

from control_plane.api.access import Admin
from control_plane.api.at import From, To, refuse_backwards, stretch_of, travel_of
from control_plane.api.pages import Limit, Page, event_page
from control_plane.api.picking import After, LastEventId, Picked, held
from control_plane.api.problems import PROBLEMS
from control_plane.api.state import feed_of
from control_plane.api.views import EventView
from control_plane.api.watch import STREAMED, event_stream, watch
from events.values import Position

router = APIRouter(prefix="/v1/events", tags=["events"], responses=PROBLEMS)


@router.get("")
async def list_events(
    request: Request,
    _principal: Admin,
    pick: Picked,
    *,
    after: After = None,
    cursor: After = None,
    from_: From = None,
    to: To = None,
    limit: Limit = 200,
) -> Page[EventView]:
    """Events in the ledger's order, after a position or between two places in the past: all that are final, or those
    picked of them.

    While few are found among very many, a page may be short or empty, and yet not be the last.
    """
    feed = feed_of(request)
    held_at = await held(request, cursor or after)
    begin, end = await _stretch(request, from_, to)
    found = await feed.past.full_page(pick, max(held_at.position, begin), end, limit)
    return event_page(found, end)


async def _stretch(request: Request, from_: str | None, to: str | None) -> tuple[Position, Position]:
    """The positions behind which and up to which a list goes."""
    if from_ is None and to is None:
        return Position(0), await feed_of(request).up_to_date()
    begin, end = await travel_of(request).positions(*stretch_of(from_, to))
    refuse_backwards(begin, end)
    return begin, end


@router.get("/watch", response_class=StreamingResponse, responses=STREAMED)
async def watch_events(
    request: Request, _principal: Admin, pick: Picked, after: After = None, last_event_id: LastEventId = None
) -> StreamingResponse:
    """Events as they become final, after `Last-Event-ID` or `after`: all of them, or those picked."""
    start = await held(request, last_event_id or after)
    return event_stream(watch(feed_of(request), start.position, pick))
