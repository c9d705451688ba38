"""Present conditions of an allocation that its events do not contain: whether its nodes are reachable, and whether they
are being drained.

Heartbeats are not recorded as events, and a drain is an event of its node, so only views of the present have
conditions; views of the past and the events of a watch do not.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.api.views.allocation_views import AllocationView, ConditionView
from control_plane.work import tables
from events.nodes import NodeDrainStarted
from read_models.nodes import running_drains

_OVER: Final = frozenset({"released", "failed"})
"""States in which the allocation no longer has its slots, so that the state of their node is irrelevant."""


async def with_conditions(
    conn: AsyncConnection, views: Sequence[AllocationView], unreachable_after: timedelta
) -> list[AllocationView]:
    """Return the views of allocations with their present conditions.

    A node without a heartbeat for `unreachable_after` is unreachable.
    """
    names = {name for view in views for name in _nodes_of(view)}
    drains = await running_drains(conn, names)
    seen = await _last_heartbeats(conn, names, unreachable_after)
    unreachable = {name: seen.get(name) for name in names if name not in seen or seen[name] is not None}
    return [view.model_copy(update={"conditions": _conditions(view, unreachable, drains)}) for view in views]


async def _last_heartbeats(
    conn: AsyncConnection, names: set[str], unreachable_after: timedelta
) -> dict[str, datetime | None]:
    """Return the nodes that ever sent a heartbeat: each with the time of its last heartbeat if the next one is overdue,
    else with None.
    """
    if not names:
        return {}
    seen = tables.node_seen
    overdue = seen.c.seen_at < sa.func.clock_timestamp() - unreachable_after
    query = sa.select(seen.c.node_id, sa.case((overdue, seen.c.seen_at)).label("since")).where(
        seen.c.node_id.in_(names)
    )
    return {row.node_id: row.since for row in await conn.execute(query)}


def _nodes_of(view: AllocationView) -> list[str]:
    return sorted({slot.node_id for slot in view.slots}) if view.state not in _OVER else []


def _conditions(
    view: AllocationView,
    unreachable: Mapping[str, datetime | None],
    drains: Mapping[str, NodeDrainStarted],
) -> list[ConditionView]:
    nodes = _nodes_of(view)
    found = [_unreachable(name, unreachable[name]) for name in nodes if name in unreachable]
    if view.state == "releasing":
        return found
    return found + [_draining(name, drains[name]) for name in nodes if name in drains]


def _draining(node: str, drain: NodeDrainStarted) -> ConditionView:
    end = (
        "the drain waits until the allocation ends by itself"
        if drain.release_at is None
        else f"the allocation is released at {drain.release_at.isoformat()}, and the data on its disks is deleted"
    )
    message = f"node {node} is being drained ({drain.reason}): {end}"
    return ConditionView(code="node_draining", message=message, node_id=node, since=drain.started_at)


def _unreachable(node: str, since: datetime | None) -> ConditionView:
    last = (
        "the node has not sent a heartbeat yet"
        if since is None
        else f"the node's last heartbeat came at {since.isoformat()}"
    )
    reason = f"node {node} is unreachable: {last}; its slices are shown as the node last reported them"
    return ConditionView(code="node_unreachable", message=reason, node_id=node, since=since)
