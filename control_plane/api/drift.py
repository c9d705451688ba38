"""`/v1/drift`, `/v1/nodes/{node}/drift`: what is otherwise on hosts than it is wanted, and was not mended yet."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Final

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request, Response
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.api.access import Admin
from control_plane.api.at import At, say, travel_of
from control_plane.api.nodes import node_named
from control_plane.api.pages import Cursor, Page, bad_cursor
from control_plane.api.problems import PROBLEMS
from control_plane.api.state import plane_of
from control_plane.api.then import nodes_then, slots_then
from control_plane.api.views import DriftView, NodeView, SlotView, past_node_view, slot_view
from control_plane.decisions.refusals import Objection, UnknownName
from events.values import InvalidValue, NodeId, SlotId, node_id
from read_models import nodes, slots
from read_models.nodes import NodeRow
from read_models.slots import SlotRow

router = APIRouter(prefix="/v1", tags=["drift"], responses=PROBLEMS)
_DRIFTING: Final = sa.union(
    *(sa.select(table.c.node_id).where(table.c.drift.is_not(None)) for table in (nodes.node, slots.slot))
).subquery("drifting")
"""Names of hosts where something is open."""
Hosts = Annotated[int, Query(ge=1, le=100)]


@router.get("/drift")
async def list_drift(
    request: Request,
    response: Response,
    _principal: Admin,
    *,
    at: At = None,
    cursor: Cursor = None,
    limit: Hosts = 20,
) -> Page[DriftView]:
    """All that is open, host by host; `limit` counts hosts. As of the past a page may be short, and even empty.

    Of a host without access nothing is told: nobody knows what it is like since.
    """
    after = None if cursor is None else _host_in(cursor)
    if at is not None:
        async with travel_of(request).to(at) as (conn, [place]):
            names = [row.node_id for row in await nodes.page(conn, after=after, limit=limit)]
            slot_names = await _slots_of(conn, names)
            found = _of(
                await nodes_then(conn, names, place.position),
                await slots_then(conn, slot_names, place.position),
            )
        say(response, place)
    else:
        async with plane_of(request).engine.connect() as conn:
            names = await _drifting(conn, after, limit)
            found = await _now(conn, names)
    return Page(items=found, next_cursor=names[-1] if len(names) == limit else None)


@router.get("/nodes/{node}/drift")
async def drift_of_node(
    request: Request, response: Response, _principal: Admin, node: str, at: At = None
) -> Page[DriftView]:
    """What is open on one host: what concerns all of its slots first, then slot by slot."""
    name = node_named(node)
    if at is not None:
        async with travel_of(request).to(at) as (conn, [place]):
            slot_names = await _slots_of(conn, [name])
            then = await nodes_then(conn, [name], place.position)
            found = _of(then, await slots_then(conn, slot_names, place.position))
        say(response, place)
    else:
        async with plane_of(request).engine.connect() as conn:
            row = await nodes.find(conn, name)
            then = [] if row is None else [past_node_view(row)]
            found = await _now(conn, [name])
    if not then:
        raise UnknownName(Objection("unknown_node", f"no node is named {node!r}"))
    return Page(items=found, next_cursor=None)


async def _drifting(conn: AsyncConnection, after: NodeId | None, limit: int) -> list[NodeId]:
    query = sa.select(_DRIFTING.c.node_id).order_by(_DRIFTING.c.node_id).limit(limit)
    if after is not None:
        query = query.where(_DRIFTING.c.node_id > after)
    return [NodeId(name) for name in await conn.scalars(query)]


async def _slots_of(conn: AsyncConnection, names: Sequence[NodeId]) -> list[SlotId]:
    query = sa.select(slots.slot.c.slot_id).where(slots.slot.c.node_id.in_(names))
    ordered = query.order_by(slots.slot.c.node_id, slots.slot.c.slot_index)
    return [SlotId(name) for name in await conn.scalars(ordered)]


async def _now(conn: AsyncConnection, names: Sequence[NodeId]) -> list[DriftView]:
    hosts = sa.select(nodes.node).where(nodes.node.c.node_id.in_(names)).order_by(nodes.node.c.node_id)
    drifting = slots.slot.c.drift.is_not(None)
    places = sa.select(slots.slot).where(slots.slot.c.node_id.in_(names), drifting)
    ordered = places.order_by(slots.slot.c.node_id, slots.slot.c.slot_index)
    return _of(
        [past_node_view(NodeRow(row)) for row in (await conn.execute(hosts)).mappings()],
        [slot_view(SlotRow(row)) for row in (await conn.execute(ordered)).mappings()],
    )


def _of(hosts: Iterable[NodeView], places: Sequence[SlotView]) -> list[DriftView]:
    return list(_each(hosts, places))


def _each(hosts: Iterable[NodeView], places: Sequence[SlotView]) -> Iterator[DriftView]:
    by_host: dict[str, list[SlotView]] = {}
    for place in places:
        by_host.setdefault(place.node_id, []).append(place)
    for host in hosts:
        if host.state != "revoked":
            yield from host.drift
            yield from (each for place in by_host.get(host.id, ()) for each in place.drift)


def _host_in(cursor: str) -> NodeId:
    try:
        return node_id(cursor)
    except InvalidValue:
        raise bad_cursor(cursor) from None
