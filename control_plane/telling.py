"""Whether what is waited for may be on its way: a node that is heard and has reports that are not taken yet.

A deadline that passed meanwhile does not fire (design section 4): after an outage of ours, slices that are long ready
would be taken down before their nodes could say so. A node that fell silent is waited for no longer.
"""

from collections.abc import Collection
from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.work import node_seen
from events.values import NodeId


async def has_recent_heartbeat(conn: AsyncConnection, node: NodeId, silent_after: timedelta) -> bool:
    """Whether the node sent a heartbeat within `silent_after`."""
    recent = sa.select(sa.literal(1)).where(
        node_seen.c.node_id == node, node_seen.c.seen_at > sa.func.clock_timestamp() - silent_after
    )
    return (await conn.execute(recent)).first() is not None


async def is_telling(conn: AsyncConnection, nodes: Collection[NodeId], silent_after: timedelta) -> bool:
    """Whether one of the nodes has something to tell; one that was not heard for `silent_after` has not."""
    telling = sa.select(sa.literal(1)).where(
        node_seen.c.node_id.in_(nodes),
        node_seen.c.spooled_reports > 0,
        node_seen.c.seen_at > sa.func.clock_timestamp() - silent_after,
    )
    return (await conn.execute(telling.limit(1))).first() is not None
