"""Resources as they were at a position of the log, each in the view that the present has."""

from collections.abc import Sequence
from typing import cast

import psycopg
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.api.allocation_views import AllocationView, allocation_view
from control_plane.api.views import NodeDetail, NodeView, SlotView, in_detail, past_node_view, slot_view
from control_plane.time_travel.rows import rows_at, streams_up_to
from events.allocations import AllocationFact
from events.connection import ledger_connection
from events.envelope import Recorded
from events.facts import Fact
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
    """Those of the allocations that had been asked for."""
    streams = list(map(stream_of_allocation, names))
    found = await streams_up_to(await _ledger(conn), streams, position)
    return [told(found[stream]) for stream in streams if stream in found]


def told(history: Sequence[Recorded[Fact]]) -> AllocationView:
    """The allocation of whose stream this is the beginning."""
    facts = cast(tuple[AllocationFact, ...], tuple([each.fact for each in history]))
    return allocation_view(facts, history[0].cause.observed_at)


async def _ledger(conn: AsyncConnection) -> psycopg.AsyncConnection[tuple[object, ...]]:
    # Who listed the names has locks on live tables until the transaction ends. A swap of these stops all appends while
    # it waits for them, and folding a page takes longer than they may be stopped.
    await conn.rollback()
    return await ledger_connection(conn)


async def nodes_then(conn: AsyncConnection, names: Sequence[NodeId], position: Position) -> list[NodeView]:
    """Return the nodes that were registered then."""
    streams = list(map(stream_of_node, names))
    rows = await rows_at(await _ledger(conn), NODES, streams, position)
    found = [NodeRow(rows[stream]) for stream in streams if stream in rows]
    return [past_node_view(row) for row in found if row.state != REMOVED]


async def details_then(
    conn: AsyncConnection, names: Sequence[NodeId], position: Position
) -> list[NodeDetail]:
    """The same, each with what drifted in its slots."""
    slot_names = await slots.names_of(conn, names)
    hosts = await nodes_then(conn, names, position)
    return in_detail(hosts, await slots_then(conn, slot_names, position))


async def slots_then(conn: AsyncConnection, names: Sequence[SlotId], position: Position) -> list[SlotView]:
    """Those of the slots that were discovered already."""
    streams = list(map(stream_of_slot, names))
    rows = await rows_at(await _ledger(conn), SLOTS, streams, position)
    return [slot_view(SlotRow(rows[stream])) for stream in streams if stream in rows]
