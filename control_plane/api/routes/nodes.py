"""`/v1/nodes`: register, list, show, configure, cordon, drain and revoke nodes."""

import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import sqlalchemy as sa
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.api.filters.nodes import Wanted
from control_plane.api.filters.scanning import filtered
from control_plane.api.requests.access import AuthenticatedRoute, Caller, access, caller_of
from control_plane.api.requests.as_of import At, set_headers, travel_of
from control_plane.api.requests.bodies import (
    ConfigureNode,
    DrainNode,
    ReasonOnly,
    RegisterNode,
)
from control_plane.api.requests.commands import execute, execute_with_secret
from control_plane.api.requests.conditional import IF_MATCH, TAGGED, set_version
from control_plane.api.requests.pages import Cursor, Limit, Order, Page, invalid_cursor
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import origin_of, plane_of, users_of
from control_plane.api.views.past_views import details_then, nodes_then
from control_plane.api.views.views import (
    Live,
    NodeDetail,
    NodeView,
    in_detail,
    node_view,
    past_node_view,
)
from control_plane.commands.bring_ups import readmit_node_to_placement
from control_plane.commands.drains import cordon_node, drain_node, uncordon_node
from control_plane.commands.identity import revoke_node
from control_plane.commands.nodes import configure_node, register_node, remove_node, reopen_enrolment
from control_plane.decisions.access import Scope
from control_plane.decisions.refusals import Objection, UnknownName
from control_plane.handle import Command
from control_plane.work.live_nodes import live_nodes
from control_plane.work.placeable import hosts_blocked
from events.nodes import NodeNetwork
from events.values import (
    InvalidValue,
    NodeId,
    StreamId,
    node_id,
    stream_of_node,
)
from read_models import nodes, slots
from read_models.nodes import NodeRow
from read_models.pages import keyset
from tasks.failpoints import failpoint

router = APIRouter(prefix="/v1", tags=["nodes"], responses=PROBLEMS, route_class=AuthenticatedRoute)


class RegisteredNode(BaseModel):
    """A registered node. No other request returns `enrolment_token`; the node enrols with it once, with its own key."""

    id: str
    subnet: str
    enrolment_token: str
    token_expires_at: datetime


@router.post("/nodes", status_code=201, openapi_extra=access(Scope.FLEET_WRITE))
async def register(request: Request, principal: Caller, body: RegisterNode) -> RegisteredNode:
    """Register a node by name and return its one-time enrolment token, of which only a hash is stored.

    Another request before the node enrols returns the same subnet and a new token, and invalidates the earlier token. A
    repetition with the same Idempotency-Key returns the same token.
    """
    token, networks = _new_token(), plane_of(request).settings.slice_networks
    command = register_node(NodeId(body.id), token, origin_of(request, principal), networks)
    return await _registered(request, body.id, token, command)


@router.delete("/nodes/{node}", dependencies=[IF_MATCH], openapi_extra=access(Scope.FLEET_WRITE))
async def remove(request: Request, principal: Caller, node: str) -> NodeView:
    """Remove the registration of a node that never enrolled. Its subnet is freed. Idempotent."""
    name = node_named(node)
    await execute(request, remove_node(name, origin_of(request, principal)), stream_of_node(name))
    async with plane_of(request).engine.connect() as conn:
        row = await nodes.last_registration(conn, name)
        assert row is not None, "the read model must keep the row of a removed node"
        set_version(request, row.version)
        return past_node_view(row)


@router.post(
    "/nodes/{node}/enrolment",
    status_code=201,
    dependencies=[IF_MATCH],
    openapi_extra=access(Scope.FLEET_WRITE),
)
async def reopen_enrolment_of_node(request: Request, principal: Caller, node: str) -> RegisteredNode:
    """Return a new enrolment token for a node that lost its first token or its disk. A repetition with the same
    Idempotency-Key returns the same token.
    """
    token = _new_token()
    command = reopen_enrolment(node_named(node), token, origin_of(request, principal))
    return await _registered(request, node, token, command, about=stream_of_node(node_named(node)))


@router.post("/nodes/{node}/revoke", dependencies=[IF_MATCH], openapi_extra=access(Scope.FLEET_WRITE))
async def revoke(request: Request, principal: Caller, node: str, body: ReasonOnly) -> NodeDetail:
    """Revoke a node's access at once: its key, its session and its queue. Its slices are not touched."""
    name = node_named(node)
    command = revoke_node(name, body.reason, origin_of(request, principal))
    await execute(request, command, stream_of_node(name))
    # After a crash before this line, the dispatcher, which checks every second, updates the queue's user.
    failpoint("api.node_revoked")
    await users_of(request).follow(name)
    return await node_shown(request, name)


@router.post("/nodes/{node}/readmit", dependencies=[IF_MATCH], openapi_extra=access(Scope.FLEET_WRITE))
async def readmit_node(request: Request, principal: Caller, node: str, body: ReasonOnly) -> NodeDetail:
    """Readmit a node that was excluded from placement after failed bring-ups. Its count of failures is set to 0."""
    name = node_named(node)
    command = readmit_node_to_placement(name, body.reason, origin_of(request, principal))
    await execute(request, command, stream_of_node(name))
    return await node_shown(request, name)


@router.post("/nodes/{node}/cordon", dependencies=[IF_MATCH], openapi_extra=access(Scope.FLEET_WRITE))
async def cordon(request: Request, principal: Caller, node: str, body: ReasonOnly) -> NodeDetail:
    """Cordon a node: no new slice is placed on it, and slices that run there stay. Idempotent."""
    name = node_named(node)
    command = cordon_node(name, body.reason, origin_of(request, principal))
    await execute(request, command, stream_of_node(name))
    return await node_shown(request, name)


@router.post("/nodes/{node}/uncordon", dependencies=[IF_MATCH], openapi_extra=access(Scope.FLEET_WRITE))
async def uncordon(request: Request, principal: Caller, node: str, body: ReasonOnly) -> NodeDetail:
    """Open a cordoned node for placements again. A running drain of the node is cancelled."""
    name, unreachable_after = node_named(node), plane_of(request).settings.unreachable_after
    origin = origin_of(request, principal)
    command = uncordon_node(name, body.reason, origin, unreachable_after=unreachable_after)
    await execute(request, command, stream_of_node(name))
    return await node_shown(request, name)


@router.post("/nodes/{node}/drain", dependencies=[IF_MATCH], openapi_extra=access(Scope.FLEET_WRITE))
async def drain(request: Request, principal: Caller, node: str, body: DrainNode) -> NodeDetail:
    """Cordon a node and empty it: wait until its allocations end, or release them after `release_after_seconds`.

    The drain ends as soon as no slot of the node is claimed, releasing or quarantined, or with a reason for each slot
    that is not empty ten minutes after the release. The node stays cordoned. Another request during a drain changes the
    time of the release.
    """
    name, after = node_named(node), body.release_after_seconds
    release_after = None if after is None else timedelta(seconds=after)
    command = drain_node(name, body.reason, release_after, origin_of(request, principal))
    await execute(request, command, stream_of_node(name))
    return await node_shown(request, name)


@router.put("/nodes/{node}/network", dependencies=[IF_MATCH], openapi_extra=access(Scope.FLEET_WRITE))
async def configure(request: Request, principal: Caller, node: str, body: ConfigureNode) -> NodeDetail:
    """Set the bridge, the layer-2 domain and the MAC pool of a node. Slots get them when they are approved.

    The bridge must be the one in the settings of the node's agent. It and the domain can change only while no slot of
    the node has addresses. Another pool applies to slots that are approved or reprovisioned later. Idempotent.
    """
    name, pool = node_named(node), None if body.mac_pool is None else body.mac_pool.pool
    wanted = NodeNetwork(body.bridge, body.l2_domain, pool)
    await execute(request, configure_node(name, wanted, origin_of(request, principal)), stream_of_node(name))
    return await node_shown(request, name)


def _new_token() -> str:
    return f"enrol_{secrets.token_urlsafe(32)}"


async def _registered(
    request: Request, node: str, token: str, command: Command, about: StreamId | None = None
) -> RegisteredNode:
    made = await execute_with_secret(request, command, {"enrolment_token": token}, about)
    return RegisteredNode(id=node, **made)


@router.get("/nodes", openapi_extra=access(Scope.FLEET_READ))
async def list_nodes(
    request: Request,
    response: Response,
    *,
    wanted: Wanted,
    at: At = None,
    cursor: Cursor = None,
    limit: Limit = 100,
    order: Order = "asc",
) -> Page[NodeView]:
    """List nodes by name. A node is listed if it matches every filter. In views of the past a page omits nodes that
    were registered later and nodes that do not match, and may be short or empty without being the last.
    """
    after, descending = None if cursor is None else _node_cursor(cursor), order == "desc"
    if at is not None:
        wanted.refuse_live_states()
        views_then = nodes_then if wanted.drift is None else details_then
        async with travel_of(request).to(at) as (conn, [place]):

            async def then(rows: Sequence[NodeRow]) -> Sequence[NodeView]:
                return await views_then(conn, [row.node_id for row in rows], place.position)

            page = partial(nodes.page, conn, name_prefix=wanted.name_prefix, descending=descending)
            listed = await filtered(
                page,
                _id_and_name,
                then,
                wanted.condition,
                after=after,
                limit=limit,
                max_rows_read=wanted.max_rows_read,
            )
        set_headers(response, place)
        return listed
    unreachable_after = plane_of(request).settings.unreachable_after
    query = live_nodes(unreachable_after).where(*wanted.conditions(unreachable_after))
    place_after = None if after is None else (after,)
    query = keyset(query, [nodes.node.c.node_id], place_after, limit, descending=descending)
    async with plane_of(request).engine.connect() as conn:
        views = [view for _, view in await _present(request, conn, query)]
    return Page(items=views, next_cursor=views[-1].id if len(views) == limit else None)


def _id_and_name(row: NodeRow) -> tuple[str, NodeId]:
    return row.node_id, row.node_id


def _node_cursor(cursor: str) -> NodeId:
    try:
        return node_id(cursor)
    except InvalidValue:
        raise invalid_cursor(cursor) from None


async def _present(
    request: Request, conn: AsyncConnection, query: sa.Select[Any]
) -> list[tuple[NodeRow, NodeView]]:
    """Return the rows and the views of the nodes that a query of `live_nodes` finds."""
    rows = [*(await conn.execute(query)).mappings()]
    settings, principal = plane_of(request).settings, caller_of(request)
    names, allowed = [NodeId(row["node_id"]) for row in rows], settings.place_on_simulated_nodes
    blocked = await hosts_blocked(conn, names, settings.unreachable_after, simulated_allowed=allowed)
    found = [(NodeRow(row), Live(row["live_state"], row["seen_at"], row["spooled_reports"])) for row in rows]
    return [(row, node_view(row, live, blocked.get(row.node_id), principal)) for row, live in found]


def node_named(raw: str) -> NodeId:
    """Parse a node id. Raises `UnknownName` if it is not valid."""
    try:
        return node_id(raw)
    except InvalidValue:
        raise UnknownName(Objection("unknown_node", f"no node is named {raw!r}")) from None


@router.get("/nodes/{node}", openapi_extra=access(Scope.FLEET_READ), **TAGGED)
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
    """Return the present view of a node, with its ETag. Raises `UnknownName`."""
    query = live_nodes(plane_of(request).settings.unreachable_after).where(nodes.node.c.node_id == name)
    async with plane_of(request).engine.connect() as conn:
        found = await _present(request, conn, query)
        if not found:
            raise UnknownName(Objection("unknown_node", f"no node is named {name!r}"))
        [(row, view)], own = found, await slots.of_node(conn, name)
    [shown] = in_detail([(view, row)], own)
    set_version(request, row.version)
    return shown
