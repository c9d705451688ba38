"""`/v1/allocations/{id}/events` and `/watch`: all that one request led to, be it in its own stream or in its slots'."""

from typing import NamedTuple

import sqlalchemy as sa
from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse

from control_plane.api.access import Admin
from control_plane.api.pages import Limit, Page, event_page
from control_plane.api.picking import After, LastEventId, held
from control_plane.api.problems import PROBLEMS
from control_plane.api.progress import Subject, watch_both
from control_plane.api.state import feed_of, plane_of
from control_plane.api.views import EventView
from control_plane.api.watch import STREAMED, event_stream
from control_plane.decisions.refusals import Objection, UnknownName
from control_plane.histories import allocation_history
from control_plane.work import task
from events.allocations import AllocationPlaced, AllocationReplaced
from events.search import Pick
from events.values import InvalidValue, NodeId, Position, SlotId, allocation_id, correlation_of, node_of

router = APIRouter(prefix="/v1/allocations", tags=["allocations"], responses=PROBLEMS)


class _Story(NamedTuple):
    pick: Pick
    before: Position
    """Nothing of it stands up to here."""
    slots: tuple[SlotId, ...]
    """The slots that the allocation has now, all on one node."""

    @property
    def node(self) -> NodeId:
        return node_of(self.slots[0])


@router.get("/{allocation}/events")
async def read_story(
    request: Request, _principal: Admin, allocation: str, cursor: After = None, limit: Limit = 200
) -> Page[EventView]:
    """The whole story, oldest first: the allocation's own events and those of its slots that belong to it."""
    feed, story = feed_of(request), await _story(request, allocation)
    start = await held(request, cursor)
    final = await feed.up_to_date()
    after = max(start.position, story.before)
    return event_page(await feed.past.full_page(story.pick, after, final, limit), final)


@router.get("/{allocation}/watch", response_class=StreamingResponse, responses=STREAMED)
async def watch_story(
    request: Request,
    _principal: Admin,
    allocation: str,
    after: After = None,
    last_event_id: LastEventId = None,
) -> StreamingResponse:
    """The story as it happens, from its beginning or after `Last-Event-ID`; and between its events how far the node is
    with its orders, as messages `progress` without an id.
    """
    story = await _story(request, allocation)
    start = await held(request, last_event_id or after)
    behind = max(start.position, story.before)
    name = allocation_id(allocation)
    which = sa.and_(
        task.c.node_id == story.node, task.c.slot_id.in_(story.slots), task.c.allocation_id == name
    )
    return event_stream(
        watch_both(
            request, Subject(story.pick, behind, story.node, lambda step: step.allocation_id == name, which)
        )
    )


async def _story(request: Request, raw: str) -> _Story:
    unknown = UnknownName(Objection("unknown_allocation", f"there is no allocation {raw}"))
    try:
        name = allocation_id(raw)
    except InvalidValue:
        raise unknown from None
    async with plane_of(request).engine.connect() as conn:
        history = await allocation_history(conn, name)
    if not history:
        raise unknown
    placements = (each.fact for each in reversed(history))
    placed = next(fact for fact in placements if isinstance(fact, AllocationPlaced | AllocationReplaced))
    return _Story(
        Pick(correlations=frozenset({correlation_of(name)})),
        Position(history[0].position - 1),
        tuple(slot.slot_id for slot in placed.slots),
    )
