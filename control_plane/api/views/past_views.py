"""Resources as of a position in the ledger, in the same views as the present ones."""

from collections.abc import Sequence

import psycopg
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.api.views.allocation_views import AllocationView, allocation_view
from control_plane.api.views.views import NodeDetail, NodeView, SlotView, in_detail, past_node_view, slot_view
from control_plane.decisions.access import Principal
from control_plane.histories import allocation_facts
from control_plane.time_travel.rows import rows_at, streams_up_to
from events.envelope import Recorded
from events.facts import Fact
from events.ledger.connection import ledger_connection
from events.values import (
    AllocationId,
    NodeId,
    Position,
    SlotId,
    stream_of_allocation,
    stream_of_node,
    stream_of_slot,
)
from read_models import slots
from read_models.inline import NODES, SLOTS
from read_models.nodes import REMOVED, NodeRow
from read_models.slots import SlotRow


async def allocations_then(
    conn: AsyncConnection, names: Sequence[AllocationId], position: Position
) -> list[AllocationView]:
    """Return the views of these allocations at a position, without those requested later."""
    streams = list(map(stream_of_allocation, names))
    found = await streams_up_to(await _ledger(conn), streams, position)
    return [view_of_history(found[stream]) for stream in streams if stream in found]


def view_of_history(history: Sequence[Recorded[Fact]], principal: Principal | None = None) -> AllocationView:
    """Return the view of an allocation after these events, which are its stream from the beginning. With a `principal`,
    the view is one of the present, and has the actions that this caller may take.
    """
    facts = tuple([each.fact for each in allocation_facts(tuple(history))])
    return allocation_view(facts, history[0].cause.observed_at, principal)


async def _ledger(conn: AsyncConnection) -> psycopg.AsyncConnection[tuple[object, ...]]:
    # The query for the names holds locks on live tables until the transaction ends. A swap of these tables blocks all
    # appends while it waits for the locks, and folding a page takes longer than appends may be blocked.
    await conn.rollback()
    return await ledger_connection(conn)


async def nodes_then(conn: AsyncConnection, names: Sequence[NodeId], position: Position) -> list[NodeView]:
    """Return the nodes that were registered at a position."""
    return [past_node_view(row) for row in await _node_rows_then(conn, names, position)]


async def _node_rows_then(
    conn: AsyncConnection, names: Sequence[NodeId], position: Position
) -> list[NodeRow]:
    streams = list(map(stream_of_node, names))
    rows = await rows_at(await _ledger(conn), NODES, streams, position)
    found = [NodeRow(rows[stream]) for stream in streams if stream in rows]
    return [row for row in found if row.state != REMOVED]


async def details_then(
    conn: AsyncConnection, names: Sequence[NodeId], position: Position
) -> list[NodeDetail]:
    """Return the nodes that were registered at a position, each with its drain and the open drift of its slots."""
    slot_names = await slots.ids_of(conn, names)
    hosts = await _node_rows_then(conn, names, position)
    rows = await _slot_rows_then(conn, slot_names, position)
    return in_detail([(past_node_view(host), host) for host in hosts], rows)


async def slots_then(conn: AsyncConnection, names: Sequence[SlotId], position: Position) -> list[SlotView]:
    """Return the views of these slots at a position, without those discovered later."""
    return [slot_view(row) for row in await _slot_rows_then(conn, names, position)]


async def _slot_rows_then(
    conn: AsyncConnection, names: Sequence[SlotId], position: Position
) -> list[SlotRow]:
    streams = list(map(stream_of_slot, names))
    rows = await rows_at(await _ledger(conn), SLOTS, streams, position)
    return [SlotRow(rows[stream]) for stream in streams if stream in rows]
