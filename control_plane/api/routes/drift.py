"""`/v1/drift`, `/v1/nodes/{node}/drift`: open drift, the differences between desired and observed state of nodes."""

from collections.abc import Iterable, Sequence
from datetime import UTC
from hashlib import sha256
from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request, Response
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.api.requests.access import AuthenticatedRoute, access
from control_plane.api.requests.as_of import At, set_headers, travel_of
from control_plane.api.requests.pages import Cursor, Limit, Order, Page, invalid_cursor, page_of
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import plane_of
from control_plane.api.routes.nodes import node_named
from control_plane.api.views.past_views import details_then
from control_plane.api.views.views import DriftView, NodeDetail, in_detail, past_node_view
from control_plane.decisions.access import Scope
from control_plane.decisions.refusals import Objection, UnknownName
from control_plane.work.live_nodes import DRIFTING
from events.values import InvalidValue, NodeId, SlotId, index_of, node_id
from read_models import nodes, slots
from read_models.nodes import NodeRow
from read_models.pages import keyset

router = APIRouter(prefix="/v1", tags=["drift"], responses=PROBLEMS, route_class=AuthenticatedRoute)
NodeLimit = Annotated[int, Query(ge=1, le=100)]


@router.get("/drift", openapi_extra=access(Scope.FLEET_READ))
async def list_drift(
    request: Request,
    response: Response,
    *,
    at: At = None,
    cursor: Cursor = None,
    limit: NodeLimit = 20,
    order: Order = "asc",
) -> Page[DriftView]:
    """List open drift, node by node; `limit` counts nodes. Revoked nodes are omitted, because their present state is
    unknown. A page may be short or empty without being the last.
    """
    after, descending = None if cursor is None else _node_cursor(cursor), order == "desc"
    if at is not None:
        async with travel_of(request).to(at) as (conn, [place]):
            rows = await nodes.page(conn, after=after, limit=limit, descending=descending)
            names = [row.node_id for row in rows]
            hosts = await details_then(conn, names, place.position)
        set_headers(response, place)
    else:
        async with plane_of(request).engine.connect() as conn:
            names = await _drifting(conn, after, limit, descending=descending)
            hosts = await _now(conn, names)
    hosts = sorted(hosts, key=lambda each: each.id, reverse=descending)
    return Page(items=_open(hosts), next_cursor=names[-1] if len(names) == limit else None)


@router.get("/nodes/{node}/drift", openapi_extra=access(Scope.FLEET_READ))
async def drift_of_node(
    request: Request,
    response: Response,
    node: str,
    *,
    at: At = None,
    cursor: Cursor = None,
    limit: Limit = 100,
    order: Order = "asc",
) -> Page[DriftView]:
    """List the open drift of one node: first the drift that concerns all of its slots, then slot by slot, and for each
    the oldest first.
    """
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
    items = sorted(_open(hosts), key=_cursor)
    return page_of(items, [_cursor(each) for each in items], cursor, limit, order)


def _cursor(drift: DriftView) -> str:
    """Return the cursor of a drift in the list of its node: slot, beginning, kind, and a digest of the drift."""
    slot = 0 if drift.slot_id is None else 1 + index_of(SlotId(drift.slot_id))
    digest = sha256(drift.model_dump_json().encode()).hexdigest()
    return f"{slot:04}.{drift.since.astimezone(UTC):%Y%m%d%H%M%S%f}.{drift.kind}.{digest[:16]}"


async def _drifting(
    conn: AsyncConnection, after: NodeId | None, limit: int, *, descending: bool
) -> list[NodeId]:
    name, place = DRIFTING.c.node_id, None if after is None else (after,)
    query = keyset(sa.select(name), [name], place, limit, descending=descending)
    return [NodeId(name) for name in await conn.scalars(query)]


async def _now(conn: AsyncConnection, names: Sequence[NodeId]) -> list[NodeDetail]:
    hosts = sa.select(nodes.node).where(nodes.node.c.node_id.in_(names)).order_by(nodes.node.c.node_id)
    rows = [NodeRow(row) for row in (await conn.execute(hosts)).mappings()]
    return in_detail([(past_node_view(row), row) for row in rows], await slots.drifting(conn, names))


def _open(hosts: Iterable[NodeDetail]) -> list[DriftView]:
    with_access = (host for host in hosts if host.state != "revoked")
    return [each for host in with_access for each in (*host.drift, *host.slot_drift)]


def _node_cursor(cursor: str) -> NodeId:
    try:
        return node_id(cursor)
    except InvalidValue:
        raise invalid_cursor(cursor) from None
