"""`/v1/drift`, `/v1/nodes/{node}/drift`: open drift, the differences between desired and observed state of nodes."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Final

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request, Response
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.api.requests.access import access
from control_plane.api.requests.as_of import At, set_headers, travel_of
from control_plane.api.requests.pages import Cursor, Page, invalid_cursor
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import plane_of
from control_plane.api.routes.nodes import node_named
from control_plane.api.views.past_views import details_then
from control_plane.api.views.views import DriftView, NodeDetail, in_detail, past_node_view, slot_view
from control_plane.decisions.access import Scope
from control_plane.decisions.refusals import Objection, UnknownName
from events.values import InvalidValue, NodeId, node_id
from read_models import nodes, slots
from read_models.nodes import NodeRow

router = APIRouter(prefix="/v1", tags=["drift"], responses=PROBLEMS)
_DRIFTING: Final = sa.union(
    *(sa.select(table.c.node_id).where(table.c.drift.is_not(None)) for table in (nodes.node, slots.slot))
).subquery("drifting")
"""Names of nodes with open drift."""
NodeLimit = Annotated[int, Query(ge=1, le=100)]


@router.get("/drift", openapi_extra=access(Scope.FLEET_READ))
async def list_drift(
    request: Request,
    response: Response,
    *,
    at: At = None,
    cursor: Cursor = None,
    limit: NodeLimit = 20,
) -> Page[DriftView]:
    """List open drift, node by node; `limit` counts nodes. Revoked nodes are omitted, because their present state is
    unknown. A page may be short or empty without being the last.
    """
    after = None if cursor is None else _node_cursor(cursor)
    if at is not None:
        async with travel_of(request).to(at) as (conn, [place]):
            names = [row.node_id for row in await nodes.page(conn, after=after, limit=limit, removed=True)]
            hosts = await details_then(conn, names, place.position)
        set_headers(response, place)
    else:
        async with plane_of(request).engine.connect() as conn:
            names = await _drifting(conn, after, limit)
            hosts = await _now(conn, names)
    return Page(items=_open(hosts), next_cursor=names[-1] if len(names) == limit else None)


@router.get("/nodes/{node}/drift", openapi_extra=access(Scope.FLEET_READ))
async def drift_of_node(request: Request, response: Response, node: str, at: At = None) -> Page[DriftView]:
    """List the open drift of one node: first the drift that concerns all of its slots, then slot by slot."""
    name = node_named(node)
    if at is not None:
        async with travel_of(request).to(at) as (conn, [place]):
            hosts = await details_then(conn, [name], place.position)
        set_headers(response, place)
    else:
        async with plane_of(request).engine.connect() as conn:
            hosts = await _now(conn, [name])
    if not hosts:
        raise UnknownName(Objection("unknown_node", f"no node is named {node!r}"))
    return Page(items=_open(hosts), next_cursor=None)


async def _drifting(conn: AsyncConnection, after: NodeId | None, limit: int) -> list[NodeId]:
    query = sa.select(_DRIFTING.c.node_id).order_by(_DRIFTING.c.node_id).limit(limit)
    if after is not None:
        query = query.where(_DRIFTING.c.node_id > after)
    return [NodeId(name) for name in await conn.scalars(query)]


async def _now(conn: AsyncConnection, names: Sequence[NodeId]) -> list[NodeDetail]:
    hosts = sa.select(nodes.node).where(nodes.node.c.node_id.in_(names)).order_by(nodes.node.c.node_id)
    views = [past_node_view(NodeRow(row)) for row in (await conn.execute(hosts)).mappings()]
    return in_detail(views, map(slot_view, await slots.drifting(conn, names)))


def _open(hosts: Iterable[NodeDetail]) -> list[DriftView]:
    with_access = (host for host in hosts if host.state != "revoked")
    return [each for host in with_access for each in (*host.drift, *host.slot_drift)]


def _node_cursor(cursor: str) -> NodeId:
    try:
        return node_id(cursor)
    except InvalidValue:
        raise invalid_cursor(cursor) from None
