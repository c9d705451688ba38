"""`/v1/nodes`, `/v1/slots`, `/v1/skus`: nodes, their slots, and the SKUs that can be requested."""

import json
import secrets
from datetime import datetime
from typing import Annotated, Final

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.api.requests.access import Caller, access
from control_plane.api.requests.as_of import At, set_headers, travel_of
from control_plane.api.requests.bodies import ForceRelease, Readmit, RegisterNode, RevokeNode
from control_plane.api.requests.pages import Cursor, Limit, Page, invalid_cursor
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import key_of, origin_of, plane_of, users_of
from control_plane.api.views.past_views import details_then, nodes_then, slots_then
from control_plane.api.views.views import (
    NodeDetail,
    NodeView,
    Seen,
    SlotView,
    in_detail,
    node_view,
    past_node_view,
    slot_view,
)
from control_plane.commands.bring_ups import readmit_node_to_placement, readmit_slot_to_placement
from control_plane.commands.identity import revoke_node
from control_plane.commands.nodes import register_node, remove_node, reopen_enrolment
from control_plane.commands.slots import approve_slot, force_release
from control_plane.decisions.access import Scope
from control_plane.decisions.refusals import Objection, UnknownName
from control_plane.decisions.skus import SKUS
from control_plane.handle import database_time
from control_plane.work import tables
from control_plane.work.placeable import hosts_blocked, slots_blocked
from events.values import (
    InvalidValue,
    NodeId,
    SlotId,
    SlotIndex,
    index_of,
    node_id,
    node_of,
    slot_id,
)
from read_models import nodes, slots
from read_models.nodes import NodeRow
from read_models.slots import SlotRow
from tasks.failpoints import failpoint

router = APIRouter(prefix="/v1", tags=["nodes"], responses=PROBLEMS)
_MAX_PATH: Final = 64


class RegisteredNode(BaseModel):
    """A registered node. `enrolment_token` is returned only once; the node uses it once to enrol with its own key."""

    id: str
    subnet: str
    enrolment_token: str
    token_expires_at: datetime


class SkuView(BaseModel):
    name: str
    vcpus: int
    memory_mib: int
    rate_mbit: int | None
    """Rate limit of a slice in each direction, in Mbit/s; null: not limited."""
    images: list[str]


@router.post("/nodes", status_code=201, openapi_extra=access(Scope.FLEET_WRITE))
async def register(request: Request, principal: Caller, body: RegisterNode) -> RegisteredNode:
    """Register a node by name and return its one-time enrolment token, of which only a hash is stored.

    A repeated request before the node enrols returns the same subnet and a new token, and invalidates the earlier
    token.
    """
    token = _new_token()
    plane, origin = plane_of(request), origin_of(request, principal)
    command = register_node(NodeId(body.id), token, origin, plane.settings.slice_networks)
    return _expected(body.id, token, await plane.handle(command))


@router.delete("/nodes/{node}", openapi_extra=access(Scope.FLEET_WRITE))
async def remove(request: Request, principal: Caller, node: str) -> NodeView:
    """Remove the registration of a node that never enrolled. Its subnet is freed. Idempotent."""
    name, plane = node_named(node), plane_of(request)
    await plane.handle(remove_node(name, origin_of(request, principal)), await key_of(request, principal))
    async with plane.engine.connect() as conn:
        row = await nodes.last_registration(conn, name)
        assert row is not None, "the read model must keep the row of a removed node"
        return past_node_view(row)


@router.post("/nodes/{node}/enrolment", status_code=201, openapi_extra=access(Scope.FLEET_WRITE))
async def reopen_enrolment_of_node(request: Request, principal: Caller, node: str) -> RegisteredNode:
    """Return a new enrolment token for a node that lost its first token or its disk."""
    token = _new_token()
    command = reopen_enrolment(node_named(node), token, origin_of(request, principal))
    return _expected(node, token, await plane_of(request).handle(command))


@router.post("/nodes/{node}/revoke", openapi_extra=access(Scope.FLEET_WRITE))
async def revoke(request: Request, principal: Caller, node: str, body: RevokeNode) -> NodeDetail:
    """Revoke a node's access at once: its key, its session and its queue. Its slices are not touched."""
    name, plane = node_named(node), plane_of(request)
    command = revoke_node(name, body.reason, origin_of(request, principal))
    await plane.handle(command, await key_of(request, principal))
    # After a crash before this line, the dispatcher, which checks every second, updates the queue's user.
    failpoint("api.node_revoked")
    await users_of(request).follow(name)
    return await node_shown(request, name)


@router.post("/nodes/{node}/readmit", openapi_extra=access(Scope.FLEET_WRITE))
async def readmit_node(request: Request, principal: Caller, node: str, body: Readmit) -> NodeDetail:
    """Readmit a node that was excluded from placement after failed bring-ups. Its count of failures is set to 0."""
    name = node_named(node)
    command = readmit_node_to_placement(name, body.reason, origin_of(request, principal))
    await plane_of(request).handle(command, await key_of(request, principal))
    return await node_shown(request, name)


def _new_token() -> str:
    return f"enrol_{secrets.token_urlsafe(32)}"


def _expected(node: str, token: str, answer: str) -> RegisteredNode:
    return RegisteredNode(id=node, enrolment_token=token, **json.loads(answer))


@router.get("/nodes", openapi_extra=access(Scope.FLEET_READ))
async def list_nodes(
    request: Request,
    response: Response,
    *,
    at: At = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Page[NodeView]:
    """List nodes by name. In views of the past a page omits nodes that were registered later, and may be short."""
    after = None if cursor is None else _node_cursor(cursor)
    if at is not None:
        async with travel_of(request).to(at) as (conn, [place]):
            rows = await nodes.page(conn, after=after, limit=limit, removed=True)
            views = await nodes_then(conn, [row.node_id for row in rows], place.position)
        set_headers(response, place)
        return _node_page(views, rows, limit)
    async with plane_of(request).engine.connect() as conn:
        rows = await nodes.page(conn, after=after, limit=limit)
        views = await _node_views(request, conn, rows)
    return _node_page(views, rows, limit)


def _node_page(views: list[NodeView], rows: list[NodeRow], limit: int) -> Page[NodeView]:
    return Page(items=views, next_cursor=rows[-1].node_id if len(rows) == limit else None)


def _node_cursor(cursor: str) -> NodeId:
    try:
        return node_id(cursor)
    except InvalidValue:
        raise invalid_cursor(cursor) from None


async def _node_views(request: Request, conn: AsyncConnection, rows: list[NodeRow]) -> list[NodeView]:
    names, unreachable_after = [row.node_id for row in rows], plane_of(request).settings.unreachable_after
    unreachable_before = await database_time(conn) - unreachable_after
    seen = tables.node_seen
    query = sa.select(seen).where(seen.c.node_id.in_(names))
    heartbeats = {
        row.node_id: Seen(row.seen_at, row.resynced, row.spooled_reports) for row in await conn.execute(query)
    }
    allowed = plane_of(request).settings.place_on_simulated_nodes
    blocked = await hosts_blocked(conn, names, unreachable_after, simulated_allowed=allowed)
    return [
        node_view(row, heartbeats.get(row.node_id), unreachable_before, blocked.get(row.node_id))
        for row in rows
    ]


def node_named(raw: str) -> NodeId:
    """Parse a node id. Raises `UnknownName` if it is not valid."""
    try:
        return node_id(raw)
    except InvalidValue:
        raise UnknownName(Objection("unknown_node", f"no node is named {raw!r}")) from None


@router.get("/nodes/{node}", openapi_extra=access(Scope.FLEET_READ))
async def show_node(request: Request, response: Response, node: str, at: At = None) -> NodeDetail:
    """Return one node with its open drift, now or as of the past."""
    name = node_named(node)
    if at is not None:
        async with travel_of(request).to(at) as (conn, [place]):
            then = await details_then(conn, [name], place.position)
        if not then:
            reason = f"no node was named {name!r} at position {place.position}"
            raise UnknownName(Objection("unknown_node", reason))
        set_headers(response, place)
        return then[0]
    return await node_shown(request, name)


async def node_shown(request: Request, name: NodeId) -> NodeDetail:
    """Return the present view of a node. Raises `UnknownName`."""
    async with plane_of(request).engine.connect() as conn:
        row = await nodes.find(conn, name)
        if row is None:
            raise UnknownName(Objection("unknown_node", f"no node is named {name!r}"))
        views, places = await _node_views(request, conn, [row]), await slots.drifting(conn, [name])
    [shown] = in_detail(views, map(slot_view, places))
    return shown


@router.get("/slots", openapi_extra=access(Scope.FLEET_READ))
async def list_slots(
    request: Request,
    response: Response,
    *,
    node: Annotated[str | None, Query(max_length=_MAX_PATH)] = None,
    at: At = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Page[SlotView]:
    """List slots by node and index. In views of the past a page omits slots discovered later, and may be short."""
    only, after = None if node is None else node_named(node), _slot_cursor(cursor)
    if at is not None:
        async with travel_of(request).to(at) as (conn, [place]):
            rows = await slots.page(conn, node=only, after=after, limit=limit)
            views = await slots_then(conn, [row.slot_id for row in rows], place.position)
        set_headers(response, place)
        return _slot_page(views, rows, limit)
    async with plane_of(request).engine.connect() as conn:
        rows = await slots.page(conn, node=only, after=after, limit=limit)
        views = await _slot_views(request, conn, rows)
    return _slot_page(views, rows, limit)


async def _slot_views(request: Request, conn: AsyncConnection, rows: list[SlotRow]) -> list[SlotView]:
    names, settings = [row.slot_id for row in rows], plane_of(request).settings
    allowed = settings.place_on_simulated_nodes
    blocked = await slots_blocked(conn, names, settings.unreachable_after, simulated_allowed=allowed)
    return [slot_view(row, blocked.get(row.slot_id)) for row in rows]


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


@router.post("/nodes/{node}/slots/{index}/approve", openapi_extra=access(Scope.FLEET_WRITE))
async def approve(request: Request, principal: Caller, node: str, index: str) -> SlotView:
    """Approve a discovered slot for use. This reserves its MAC and IP addresses permanently."""
    slot = _slot(node, index)
    command = approve_slot(slot, origin_of(request, principal))
    await plane_of(request).handle(command, await key_of(request, principal))
    return await _slot_shown(request, slot)


@router.post("/nodes/{node}/slots/{index}/force-release", openapi_extra=access(Scope.FLEET_WRITE))
async def force_release_slot(
    request: Request, principal: Caller, node: str, index: str, body: ForceRelease
) -> SlotView:
    """Force-release a slot that its node has not proved empty: it can be claimed again at once. The ledger
    records the caller and the reason.
    """
    slot = _slot(node, index)
    command = force_release(slot, body.reason, origin_of(request, principal))
    await plane_of(request).handle(command, await key_of(request, principal))
    return await _slot_shown(request, slot)


@router.post("/nodes/{node}/slots/{index}/readmit", openapi_extra=access(Scope.FLEET_WRITE))
async def readmit_slot(request: Request, principal: Caller, node: str, index: str, body: Readmit) -> SlotView:
    """Readmit a slot that was excluded from placement after failed bring-ups. Its count of failures is set to 0."""
    slot = _slot(node, index)
    command = readmit_slot_to_placement(slot, body.reason, origin_of(request, principal))
    await plane_of(request).handle(command, await key_of(request, principal))
    return await _slot_shown(request, slot)


async def _slot_shown(request: Request, slot: SlotId) -> SlotView:
    async with plane_of(request).engine.connect() as conn:
        row = await slots.find(conn, slot)
        assert row is not None, (
            f"the read model must have a row of slot {slot}, because a command accepted the slot"
        )
        [shown] = await _slot_views(request, conn, [row])
    return shown


def _slot(node: str, index: str) -> SlotId:
    try:
        return slot_id(f"{node}/{index}")
    except InvalidValue:
        raise UnknownName(Objection("unknown_slot", f"no slot is named '{node}/{index}'")) from None


@router.get("/skus", openapi_extra=access(Scope.CATALOGUE_READ))
async def list_skus(request: Request, _at: At = None) -> Page[SkuView]:
    """List the SKUs that can be requested. Sizes are part of the release and images part of the settings, and not of
    the ledger: `at` is validated, but has no effect.
    """
    images = list(plane_of(request).settings.offered)
    items = [
        SkuView(
            name=sku.name,
            vcpus=sku.vcpus,
            memory_mib=sku.memory_mib,
            rate_mbit=sku.rate_mbit,
            images=images,
        )
        for sku in SKUS.values()
    ]
    return Page(items=items, next_cursor=None)
