"""Check whether an awaited report may be on its way: a reachable node still has reports in its spool.

In that case nothing happens yet at a deadline that passed (design section 4): after an outage of the control plane,
slices that have long been ready would otherwise be removed before their nodes could report it. Deadlines of unreachable
nodes fire.
"""

from collections.abc import Collection
from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.work.tables import node_seen
from events.values import NodeId


async def has_recent_heartbeat(conn: AsyncConnection, node: NodeId, unreachable_after: timedelta) -> bool:
    """Return whether the node sent a heartbeat within `unreachable_after`."""
    recent = sa.select(sa.literal(1)).where(
        node_seen.c.node_id == node, node_seen.c.seen_at > sa.func.clock_timestamp() - unreachable_after
    )
    return (await conn.execute(recent)).first() is not None


async def has_spooled_reports(
    conn: AsyncConnection, nodes: Collection[NodeId], unreachable_after: timedelta
) -> bool:
    """Return whether one of the nodes has reports to deliver and sent a heartbeat within `unreachable_after`."""
    spooling = sa.select(sa.literal(1)).where(
        node_seen.c.node_id.in_(nodes),
        node_seen.c.spooled_reports > 0,
        node_seen.c.seen_at > sa.func.clock_timestamp() - unreachable_after,
    )
    return (await conn.execute(spooling.limit(1))).first() is not None
