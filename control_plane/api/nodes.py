"""`/v1/nodes`, `/v1/slots`, `/v1/skus`: hosts, what they offer, and letting it be used."""

import json
import secrets
from datetime import datetime
from typing import Annotated, Final

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane import work
from control_plane.api.access import Admin
from control_plane.api.at import At, say, travel_of
from control_plane.api.bodies import BreakGlass, ExpectNode, Readmit, RevokeNode
from control_plane.api.pages import Cursor, Limit, Page, bad_cursor
from control_plane.api.problems import PROBLEMS
from control_plane.api.state import key_of, origin_of, plane_of, users_of
from control_plane.api.then import details_then, nodes_then, slots_then
from control_plane.api.views import (
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
from control_plane.commands.nodes import expect_node, remove_node, reopen_enrolment
from control_plane.commands.slots import approve_slot, break_glass
from control_plane.decisions.refusals import Objection, UnknownName
from control_plane.decisions.skus import SKUS
from control_plane.handle import database_time
from control_plane.placeable import hosts_blocked, slots_blocked
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


class ExpectedNode(BaseModel):
    """`enrolment_token` is shown this once; the host trades it for credentials of its own making."""

    id: str
    subnet: str
    enrolment_token: str
    token_expires_at: datetime


class SkuView(BaseModel):
    name: str
    vcpus: int
    memory_mib: int
    rate_mbit: int | None
    """What may pass to a slice, and from it, in Mbit/s; null: as much as may be."""
    images: list[str]


@router.post("/nodes", status_code=201)
async def expect(request: Request, principal: Admin, body: ExpectNode) -> ExpectedNode:
    """Admit a host by name and get its one-time enrolment token, which is stored nowhere.

    A repeated request before the host enrols returns the same subnet and a new token, and invalidates the earlier
    token.
    """
    token = _new_token()
    plane, origin = plane_of(request), origin_of(request, principal)
    command = expect_node(NodeId(body.id), token, origin, plane.settings.slice_networks)
    return _expected(body.id, token, await plane.handle(command))


@router.delete("/nodes/{node}")
async def remove(request: Request, principal: Admin, node: str) -> NodeView:
    """Remove the registration of a host that never enrolled. Its subnet is freed. Idempotent."""
    name, plane = node_named(node), plane_of(request)
    await plane.handle(remove_node(name, origin_of(request, principal)), await key_of(request, principal))
    async with plane.engine.connect() as conn:
        row = await nodes.last_registration(conn, name)
        assert row is not None, "a command about it was carried out"
        return past_node_view(row)


@router.post("/nodes/{node}/enrolment", status_code=201)
async def reopen(request: Request, principal: Admin, node: str) -> ExpectedNode:
    """Get another token for a host that lost the first, or its disk."""
    token = _new_token()
    command = reopen_enrolment(node_named(node), token, origin_of(request, principal))
    return _expected(node, token, await plane_of(request).handle(command))


@router.post("/nodes/{node}/revoke")
async def revoke(request: Request, principal: Admin, node: str, body: RevokeNode) -> NodeDetail:
    """Take a host's access away, at once: its key, its session and its queue. What it carries is not touched."""
    name, plane = node_named(node), plane_of(request)
    command = revoke_node(name, body.why, origin_of(request, principal))
    await plane.handle(command, await key_of(request, principal))
    # A crash before this line leaves the queue's user to the dispatcher, who looks every second.
    failpoint("api.node_revoked")
    await users_of(request).follow(name)
    return await node_shown(request, name)


@router.post("/nodes/{node}/readmit")
async def readmit_node(request: Request, principal: Admin, node: str, body: Readmit) -> NodeDetail:
    """Readmit a node that was excluded from placement after failed bring-ups. Its count of failures is set to 0."""
    name = node_named(node)
    command = readmit_node_to_placement(name, body.why, origin_of(request, principal))
    await plane_of(request).handle(command, await key_of(request, principal))
    return await node_shown(request, name)


def _new_token() -> str:
    return f"enrol_{secrets.token_urlsafe(32)}"


def _expected(node: str, token: str, answer: str) -> ExpectedNode:
    return ExpectedNode(id=node, enrolment_token=token, **json.loads(answer))


@router.get("/nodes")
async def list_nodes(
    request: Request,
    response: Response,
    _principal: Admin,
    *,
    at: At = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Page[NodeView]:
    """Hosts by name. As of the past a page leaves out those that came later, and may be short."""
    after = None if cursor is None else _node_cursor(cursor)
    if at is not None:
        async with travel_of(request).to(at) as (conn, [place]):
            rows = await nodes.page(conn, after=after, limit=limit, removed=True)
            views = await nodes_then(conn, [row.node_id for row in rows], place.position)
        say(response, place)
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
        raise bad_cursor(cursor) from None


async def _node_views(request: Request, conn: AsyncConnection, rows: list[NodeRow]) -> list[NodeView]:
    names, silent_after = [row.node_id for row in rows], plane_of(request).settings.silent_after
    silent_before = await database_time(conn) - silent_after
    seen = work.node_seen
    query = sa.select(seen).where(seen.c.node_id.in_(names))
    heard = {
        row.node_id: Seen(row.seen_at, row.resynced, row.spooled_reports) for row in await conn.execute(query)
    }
    allowed = plane_of(request).settings.place_on_simulated_nodes
    blocked = await hosts_blocked(conn, names, silent_after, simulated_allowed=allowed)
    return [node_view(row, heard.get(row.node_id), silent_before, blocked.get(row.node_id)) for row in rows]


def node_named(raw: str) -> NodeId:
    """Raises `UnknownName` for what names no host."""
    try:
        return node_id(raw)
    except InvalidValue:
        raise UnknownName(Objection("unknown_node", f"no node is named {raw!r}")) from None


@router.get("/nodes/{node}")
async def show_node(
    request: Request, response: Response, _principal: Admin, node: str, at: At = None
) -> NodeDetail:
    """One host, with what drifts there, as it stands now or stood then."""
    name = node_named(node)
    if at is not None:
        async with travel_of(request).to(at) as (conn, [place]):
            then = await details_then(conn, [name], place.position)
        if not then:
            why = f"no node was named {name!r} at position {place.position}"
            raise UnknownName(Objection("unknown_node", why))
        say(response, place)
        return then[0]
    return await node_shown(request, name)


async def node_shown(request: Request, name: NodeId) -> NodeDetail:
    """As it stands now. Raises `UnknownName`."""
    async with plane_of(request).engine.connect() as conn:
        row = await nodes.find(conn, name)
        if row is None:
            raise UnknownName(Objection("unknown_node", f"no node is named {name!r}"))
        views, places = await _node_views(request, conn, [row]), await slots.drifting(conn, [name])
    [shown] = in_detail(views, map(slot_view, places))
    return shown


@router.get("/slots")
async def list_slots(
    request: Request,
    response: Response,
    _principal: Admin,
    *,
    node: Annotated[str | None, Query(max_length=_MAX_PATH)] = None,
    at: At = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Page[SlotView]:
    """Slots by node and index. As of the past a page leaves out those that came later, and may be short."""
    only, after = None if node is None else node_named(node), _slot_cursor(cursor)
    if at is not None:
        async with travel_of(request).to(at) as (conn, [place]):
            rows = await slots.page(conn, node=only, after=after, limit=limit)
            views = await slots_then(conn, [row.slot_id for row in rows], place.position)
        say(response, place)
        return _slot_page(views, rows, limit)
    async with plane_of(request).engine.connect() as conn:
        rows = await slots.page(conn, node=only, after=after, limit=limit)
        views = await _slot_views(request, conn, rows)
    return _slot_page(views, rows, limit)


async def _slot_views(request: Request, conn: AsyncConnection, rows: list[SlotRow]) -> list[SlotView]:
    names, settings = [row.slot_id for row in rows], plane_of(request).settings
    allowed = settings.place_on_simulated_nodes
    blocked = await slots_blocked(conn, names, settings.silent_after, simulated_allowed=allowed)
    return [slot_view(row, blocked.get(row.slot_id)) for row in rows]


def _slot_page(views: list[SlotView], rows: list[SlotRow], limit: int) -> Page[SlotView]:
    return Page(items=views, next_cursor=rows[-1].slot_id if len(rows) == limit else None)


def _slot_cursor(cursor: str | None) -> tuple[NodeId, SlotIndex] | None:
    if cursor is None:
        return None
    try:
        slot = slot_id(cursor)
    except InvalidValue:
        raise bad_cursor(cursor) from None
    return node_of(slot), index_of(slot)


@router.post("/nodes/{node}/slots/{index}/approve")
async def approve(request: Request, principal: Admin, node: str, index: str) -> SlotView:
    """Let a discovered slot be used; this reserves its MAC and IP for good."""
    slot = _slot(node, index)
    command = approve_slot(slot, origin_of(request, principal))
    await plane_of(request).handle(command, await key_of(request, principal))
    return await _slot_shown(request, slot)


@router.post("/nodes/{node}/slots/{index}/break-glass")
async def free_without_proof(
    request: Request, principal: Admin, node: str, index: str, body: BreakGlass
) -> SlotView:
    """Give back a slot that its node does not prove empty: somebody else may have it at once. It goes on record."""
    slot = _slot(node, index)
    command = break_glass(slot, body.why, origin_of(request, principal))
    await plane_of(request).handle(command, await key_of(request, principal))
    return await _slot_shown(request, slot)


@router.post("/nodes/{node}/slots/{index}/readmit")
async def readmit_slot(request: Request, principal: Admin, node: str, index: str, body: Readmit) -> SlotView:
    """Readmit a slot that was excluded from placement after failed bring-ups. Its count of failures is set to 0."""
    slot = _slot(node, index)
    command = readmit_slot_to_placement(slot, body.why, origin_of(request, principal))
    await plane_of(request).handle(command, await key_of(request, principal))
    return await _slot_shown(request, slot)


async def _slot_shown(request: Request, slot: SlotId) -> SlotView:
    async with plane_of(request).engine.connect() as conn:
        row = await slots.find(conn, slot)
        assert row is not None, "a command about it was carried out"
        [shown] = await _slot_views(request, conn, [row])
    return shown


def _slot(node: str, index: str) -> SlotId:
    try:
        return slot_id(f"{node}/{index}")
    except InvalidValue:
        raise UnknownName(Objection("unknown_slot", f"no slot {node}/{index} was discovered")) from None


@router.get("/skus")
async def list_skus(request: Request, _principal: Admin, _at: At = None) -> Page[SkuView]:
    """What can be asked for. Sizes belong to the release, images to the settings, and neither to the ledger: `at` is
    checked, and changes nothing.
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
