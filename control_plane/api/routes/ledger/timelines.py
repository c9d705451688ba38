"""`/v1/allocations/{id}/events` and `/watch`: the timeline of an allocation, with the events of its slots."""

from typing import NamedTuple

import sqlalchemy as sa
from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse

from control_plane.api.filters.events import After, LastEventId, held
from control_plane.api.requests.access import AuthenticatedRoute, access, caller_of, credential_of
from control_plane.api.requests.pages import Limit, Order, Page, event_page, page_of_newest
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import feed_of, plane_of
from control_plane.api.routes.ledger.watch import STREAMED, event_stream, watch
from control_plane.api.routes.progress import Subject, watch_both
from control_plane.api.views.views import EventView
from control_plane.decisions.access import Scope
from control_plane.decisions.refusals import Objection, UnknownName
from control_plane.histories import allocation_placements
from control_plane.work.tables import task
from events.allocations import AllocationPlaced, AllocationReplaced
from events.ledger.search import EventFilter
from events.values import InvalidValue, NodeId, Position, SlotId, allocation_id, correlation_of, node_of

router = APIRouter(
    prefix="/v1/allocations", tags=["allocations"], responses=PROBLEMS, route_class=AuthenticatedRoute
)


class _Timeline(NamedTuple):
    pick: EventFilter
    before: Position
    """Position before the first event of the timeline."""
    slots: tuple[SlotId, ...]
    """The current slots of the allocation, all on one node; empty if it was never placed."""

    @property
    def node(self) -> NodeId | None:
        return node_of(self.slots[0]) if self.slots else None


@router.get("/{allocation}/events", openapi_extra=access(Scope.ALLOCATIONS_READ))
async def list_timeline(
    request: Request, allocation: str, cursor: After = None, limit: Limit = 200, order: Order = "asc"
) -> Page[EventView]:
    """List the timeline of an allocation, oldest first: its own events, and those of its slots that concern it."""
    feed, timeline = feed_of(request), await _timeline(request, allocation)
    start = await held(request, cursor)
    final = await feed.up_to_date()
    if order == "desc":
        before = Position(final + 1) if cursor is None else start.position
        newest = await feed.past.newest(timeline.pick, timeline.before, before, limit)
        return page_of_newest(newest, timeline.before)
    after = max(start.position, timeline.before)
    return event_page(await feed.past.full_page(timeline.pick, after, final, limit), final)


@router.get(
    "/{allocation}/watch",
    response_class=StreamingResponse,
    responses=STREAMED,
    openapi_extra=access(Scope.ALLOCATIONS_READ),
)
async def watch_timeline(
    request: Request,
    allocation: str,
    after: After = None,
    last_event_id: LastEventId = None,
) -> StreamingResponse:
    """Stream the timeline of an allocation from its beginning or after `Last-Event-ID`. Progress of the node's tasks is
    sent between the events, as `progress` messages without an id; a watch that began while the allocation waited for
    capacity has the events only.
    """
    timeline = await _timeline(request, allocation)
    start = await held(request, last_event_id or after)
    behind = max(start.position, timeline.before)
    if timeline.node is None:
        return event_stream(watch(feed_of(request), behind, timeline.pick, credential_of(request)))
    name = allocation_id(allocation)
    which = sa.and_(
        task.c.node_id == timeline.node, task.c.slot_id.in_(timeline.slots), task.c.allocation_id == name
    )
    return event_stream(
        watch_both(
            request,
            Subject(timeline.pick, behind, timeline.node, lambda step: step.allocation_id == name, which),
        )
    )


async def _timeline(request: Request, raw: str) -> _Timeline:
    unknown = UnknownName(Objection("unknown_allocation", f"no allocation has the id {raw!r}"))
    try:
        name = allocation_id(raw)
    except InvalidValue:
        raise unknown from None
    async with plane_of(request).engine.connect() as conn:
        history = await allocation_placements(conn, name, caller_of(request).projects)
    if not history:
        raise unknown
    facts = (each.fact for each in reversed(history))
    placed = next((fact for fact in facts if isinstance(fact, AllocationPlaced | AllocationReplaced)), None)
    return _Timeline(
        EventFilter(correlations=frozenset({correlation_of(name)})),
        Position(history[0].position - 1),
        () if placed is None else tuple(slot.slot_id for slot in placed.slots),
    )
