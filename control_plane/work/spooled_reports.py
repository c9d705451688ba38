"""Check whether a report that the control plane waits for may still arrive, because a node has reports in its spool.

While a reachable node still delivers reports, a deadline that has passed takes no effect (design section 4). Without
this rule, an outage of the control plane would lead to the removal of slices that were ready in time, before their
nodes could report it. If the node is unreachable, the deadline takes effect.
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
