"""`/v1/events`: the ledger itself, read and watched."""

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse

from control_plane.api.access import Admin
from control_plane.api.pages import Cursor, Limit, Page, event_page, event_stream, position_of, resume_after
from control_plane.api.problems import PROBLEMS
from control_plane.api.state import feed_of
from control_plane.api.views import EventView
from events.values import Position

router = APIRouter(prefix="/v1/events", tags=["events"], responses=PROBLEMS)


@router.get("")
async def list_events(
    request: Request, _principal: Admin, after: Cursor = None, cursor: Cursor = None, limit: Limit = 200
) -> Page[EventView]:
    """Events in the ledger's order, after a position."""
    feed = feed_of(request)
    start = position_of(cursor or after) or Position(0)
    return event_page(await feed.read(start, feed.final, None, limit), limit)


@router.get(
    "/watch", response_class=StreamingResponse, responses={200: {"content": {"text/event-stream": {}}}}
)
async def watch(request: Request, _principal: Admin, after: Cursor = None) -> StreamingResponse:
    """Every event as it becomes final, after `Last-Event-ID` or `after`."""
    return event_stream(feed_of(request).watch(resume_after(request, after), None))
