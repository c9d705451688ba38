"""`/v1/slots`, `/v1/nodes/{node}/slots`: the slots of nodes."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.api.requests.access import AuthenticatedRoute, Caller, access, caller_of
from control_plane.api.requests.as_of import At, set_headers, travel_of
from control_plane.api.requests.bodies import (
    ApproveSlot,
    ReasonOnly,
)
from control_plane.api.requests.commands import execute
from control_plane.api.requests.conditional import IF_MATCH, TAGGED, set_version
from control_plane.api.requests.pages import Cursor, Limit, Order, Page, invalid_cursor
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import origin_of, plane_of
from control_plane.api.routes.nodes import node_named
from control_plane.api.views.allowed_actions import actions_on_slot
from control_plane.api.views.past_views import slots_then
from control_plane.api.views.views import (
    SlotView,
    slot_view,
)
from control_plane.commands.bring_ups import readmit_slot_to_placement
from control_plane.commands.slots import approve_slot, force_release, reprovision_slot, retire_slot
from control_plane.decisions.access import Principal, Scope
from control_plane.decisions.refusals import Malformed, Objection, UnknownName
from control_plane.handle import Command
from control_plane.origin import Origin
from control_plane.work.placeable import slots_blocked
from events.slot_states import SlotStateName
from events.values import (
    InvalidValue,
    NodeId,
    SkuName,
    SlotId,
    SlotIndex,
    index_of,
    node_of,
    slot_id,
    stream_of_slot,
)
from read_models import catalogue, slots
from read_models.slots import SlotRow

router = APIRouter(prefix="/v1", tags=["nodes"], responses=PROBLEMS, route_class=AuthenticatedRoute)
_MAX_NODES: Final = 50
Nodes = Annotated[
    list[str], Query(default_factory=list, description=f"Only slots of these nodes, at most {_MAX_NODES}.")
]


@router.get("/slots", openapi_extra=access(Scope.FLEET_READ))
async def list_slots(
    request: Request,
    response: Response,
    *,
    node: Nodes,
    state: Annotated[
        SlotStateName | None, Query(description="Only slots in this state; not together with `at`.")
    ] = None,
    sku: Annotated[
        str | None, Query(max_length=63, description="Only slots that are offered under this SKU.")
    ] = None,
    at: At = None,
    cursor: Cursor = None,
    limit: Limit = 100,
    order: Order = "asc",
) -> Page[SlotView]:
    """List slots by node and index. In views of the past a page omits slots discovered later, and may be short."""
    page = partial(
        slots.page,
        after=_slot_cursor(cursor),
        limit=limit,
        descending=order == "desc",
        nodes=_nodes(node),
        sku=sku,
    )
    if at is not None:
        if state is not None:
            reason = "a list of the past cannot be filtered by state; leave out 'state' or 'at'"
            raise Malformed(Objection("invalid_value", reason, parameter="state"))
        async with travel_of(request).to(at) as (conn, [place]):
            rows = await page(conn)
            views = await slots_then(conn, [row.slot_id for row in rows], place.position)
        set_headers(response, place)
        return _slot_page(views, rows, limit)
    async with plane_of(request).engine.connect() as conn:
        rows = await page(conn, state=state)
        views = await _slot_views(request, conn, rows)
    return _slot_page(views, rows, limit)


def _nodes(raw: Sequence[str]) -> list[NodeId]:
    if len(raw) > _MAX_NODES:
        reason = f"the list must have at most {_MAX_NODES} nodes, not {len(raw)}; use several requests"
        raise Malformed(Objection("too_long", reason, parameter="node"))
    return [*map(node_named, raw)]


async def _slot_views(request: Request, conn: AsyncConnection, rows: list[SlotRow]) -> list[SlotView]:
    names, settings = [row.slot_id for row in rows], plane_of(request).settings
    allowed = settings.place_on_simulated_nodes
    blocked = await slots_blocked(conn, names, settings.unreachable_after, simulated_allowed=allowed)
    principal, kept = caller_of(request), {sku for row in rows for sku in row.skus}
    skus = await catalogue.offered(conn, "sku", also=kept)
    return [slot_view(row, blocked.get(row.slot_id), actions_on_slot(principal, row, skus)) for row in rows]


def _slot_page(views: list[SlotView], rows: list[SlotRow], limit: int) -> Page[SlotView]:
    return Page(items=views, next_cursor=rows[-1].slot_id if len(rows) == limit else None)


def _slot_cursor(cursor: str | None) -> tuple[NodeId, SlotIndex] | None:
    if cursor is None:
        return None
    try:
        slot = slot_id(cursor)
    except InvalidValue:
        raise invalid_cursor(cursor) from None
    return node_of(slot), index_of(slot)


@router.get("/nodes/{node}/slots/{index}", openapi_extra=access(Scope.FLEET_READ), **TAGGED)
async def show_slot(request: Request, response: Response, node: str, index: str, at: At = None) -> SlotView:
    """Return one slot, now or as of the past."""
    slot = _slot(node, index)
    if at is None:
        return await _slot_shown(request, slot)
    async with travel_of(request).to(at) as (conn, [place]):
        then = await slots_then(conn, [slot], place.position)
    if not then:
        reason = f"no slot was named '{slot}' at position {place.position}"
        raise UnknownName(Objection("unknown_slot", reason))
    set_headers(response, place)
    return then[0]


@router.post(
    "/nodes/{node}/slots/{index}/approve", dependencies=[IF_MATCH], openapi_extra=access(Scope.FLEET_WRITE)
)
async def approve(
    request: Request, principal: Caller, node: str, index: str, body: ApproveSlot | None = None
) -> SlotView:
    """Approve a discovered slot for use. This reserves its MAC and IP addresses until it is reprovisioned.

    The slot is bound to the hardware that its node describes. If the hardware differs later, the slot has the drift
    `slot.changed`, and another approval of the free slot accepts the hardware found. A retired slot gets the addresses
    and SKUs that it had. SKUs that do not fit the hardware found are refused, also those that the slot keeps because
    the request names none. An approved slot can be offered under other SKUs by naming them. Allocations that hold the
    slot are not affected.
    """
    slot = _slot(node, index)
    skus = None if body is None or body.skus is None else [SkuName(each) for each in body.skus]
    await execute(request, approve_slot(slot, skus, origin_of(request, principal)), stream_of_slot(slot))
    return await _slot_shown(request, slot)


@router.post(
    "/nodes/{node}/slots/{index}/force-release",
    dependencies=[IF_MATCH],
    openapi_extra=access(Scope.FLEET_WRITE),
)
async def force_release_slot(
    request: Request, principal: Caller, node: str, index: str, body: ReasonOnly
) -> SlotView:
    """Force-release a slot that its node has not proved empty: it can be claimed again at once. The ledger
    records the caller and the reason.
    """
    return await _commanded(request, principal, _slot(node, index), force_release, body)


@router.post(
    "/nodes/{node}/slots/{index}/readmit", dependencies=[IF_MATCH], openapi_extra=access(Scope.FLEET_WRITE)
)
async def readmit_slot(
    request: Request, principal: Caller, node: str, index: str, body: ReasonOnly
) -> SlotView:
    """Readmit a slot that was excluded from placement after failed bring-ups. Its count of failures is set to 0."""
    return await _commanded(request, principal, _slot(node, index), readmit_slot_to_placement, body)


@router.post(
    "/nodes/{node}/slots/{index}/retire", dependencies=[IF_MATCH], openapi_extra=access(Scope.FLEET_WRITE)
)
async def retire_slot_of_node(
    request: Request, principal: Caller, node: str, index: str, body: ReasonOnly
) -> SlotView:
    """Retire a free slot: no slice is placed in it until it is approved again. Idempotent.

    The slot keeps its MAC and IP addresses. Its PCI functions can be granted to another slot.
    """
    return await _commanded(request, principal, _slot(node, index), retire_slot, body)


@router.post(
    "/nodes/{node}/slots/{index}/reprovision",
    dependencies=[IF_MATCH],
    openapi_extra=access(Scope.FLEET_WRITE),
)
async def reprovision_slot_of_node(
    request: Request, principal: Caller, node: str, index: str, body: ReasonOnly
) -> SlotView:
    """Give a free slot another MAC and another IP address. The reservation of the previous ones ends."""
    return await _commanded(request, principal, _slot(node, index), reprovision_slot, body)


async def _commanded(
    request: Request,
    principal: Principal,
    slot: SlotId,
    command: Callable[[SlotId, str, Origin], Command],
    body: ReasonOnly,
) -> SlotView:
    """Run a command on a slot with the caller's reason, and return the slot."""
    await execute(request, command(slot, body.reason, origin_of(request, principal)), stream_of_slot(slot))
    return await _slot_shown(request, slot)


async def _slot_shown(request: Request, slot: SlotId) -> SlotView:
    async with plane_of(request).engine.connect() as conn:
        row = await slots.find(conn, slot)
        if row is None:
            raise _unknown_slot(slot)
        [shown] = await _slot_views(request, conn, [row])
    set_version(request, row.version)
    return shown


def _slot(node: str, index: str) -> SlotId:
    try:
        return slot_id(f"{node}/{index}")
    except InvalidValue:
        raise _unknown_slot(f"{node}/{index}") from None


def _unknown_slot(slot: str) -> UnknownName:
    return UnknownName(Objection("unknown_slot", f"no slot is named '{slot}'"))
