"""The evidence about slots that await the proof of their node that they are empty."""

from collections.abc import Mapping
from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.decisions.fleet.removals import EndedOrder, MissingProof
from control_plane.decisions.task_states import REMOVE
from control_plane.work.tables import OPEN, node_seen, task
from events.facts import Reason
from events.slot_states import SlotState
from events.values import AllocationId, SlotId, node_of

_SUCCEEDED = "done"


async def missing_proofs(
    conn: AsyncConnection,
    allocation: AllocationId,
    states: Mapping[SlotId, SlotState],
    unreachable_after: timedelta,
) -> dict[SlotId, MissingProof]:
    """Return what is known about slots that the allocation had; `states` are the present states of these slots."""
    recent = node_seen.c.seen_at > sa.func.clock_timestamp() - unreachable_after
    heartbeats = sa.select(node_seen.c.node_id, node_seen.c.seen_at, recent.label("recent"))
    seen = {
        row.node_id: row
        for row in await conn.execute(heartbeats.where(node_seen.c.node_id.in_(map(node_of, states))))
    }
    ended = await _ended_orders(conn, allocation, states)
    return {
        slot: MissingProof(
            state,
            unreachable=node_of(slot) not in seen or not seen[node_of(slot)].recent,
            last_heartbeat=seen[node_of(slot)].seen_at if node_of(slot) in seen else None,
            ended=ended.get(slot),
        )
        for slot, state in states.items()
    }


async def _ended_orders(
    conn: AsyncConnection, allocation: AllocationId, slots: Mapping[SlotId, object]
) -> dict[SlotId, EndedOrder]:
    """Return, for each slot, the newest order to remove the slice, if it ended without success."""
    newest = (
        sa.select(task.c.slot_id, task.c.state, task.c.reason)
        .ext(distinct_on(task.c.slot_id))
        .where(
            task.c.node_id.in_(map(node_of, slots)),
            task.c.slot_id.in_(slots),
            task.c.allocation_id == allocation,
            task.c.kind == REMOVE,
            task.c.epoch.is_not(None),
        )
        .order_by(task.c.slot_id, task.c.epoch.desc(), task.c.position.desc())
    )
    return {
        SlotId(row.slot_id): EndedOrder(row.state, Reason(**row.reason) if row.reason else None)
        for row in await conn.execute(newest)
        if row.state not in (*OPEN, _SUCCEEDED)
    }
