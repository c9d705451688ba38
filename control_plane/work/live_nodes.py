"""Nodes as they are now, as SQL: their rows with what follows from their heartbeats, which are not events.

The views of nodes, the filters of their list, and the counts of nodes by state in the status use these expressions, so
that each count is the length of the list with this state.
"""

from datetime import timedelta
from typing import Any, Final

import sqlalchemy as sa

from control_plane.work import tables
from read_models import nodes, slots

_NODE, _SEEN = nodes.node, tables.node_seen
WITH_HEARTBEAT: Final = _NODE.outerjoin(_SEEN, _SEEN.c.node_id == _NODE.c.node_id)
DRIFTING: Final = sa.union(
    *(sa.select(table.c.node_id).where(table.c.drift.is_not(None)) for table in (_NODE, slots.slot))
).subquery("drifting")
"""Subquery of the names of all nodes with open drift, of the node or of one of its slots."""
DRIFTS: Final = sa.and_(_NODE.c.state != "revoked", _NODE.c.node_id.in_(sa.select(DRIFTING.c.node_id)))
"""Condition that a node has open drift. A revoked node has none, because its present state is unknown."""


def state(unreachable_after: timedelta) -> sa.ColumnElement[str]:
    """Return the state of a node in `WITH_HEARTBEAT`. An enrolled node is unreachable without a heartbeat for
    `unreachable_after`, and resyncing until its agent has compared every slot and delivered its reports.
    """
    overdue = _SEEN.c.seen_at < sa.func.clock_timestamp() - unreachable_after
    return sa.case(
        (_NODE.c.state != "enrolled", _NODE.c.state),
        (sa.func.coalesce(overdue, sa.true()), "unreachable"),
        (sa.or_(sa.not_(_SEEN.c.resynced), _SEEN.c.spooled_reports > 0), "resyncing"),
        else_="enrolled",
    )


def live_nodes(unreachable_after: timedelta) -> sa.Select[Any]:
    """Return a query for all nodes that are not removed: the columns of `read_models.nodes`, `live_state`, and
    `seen_at` and `spooled_reports` of the last heartbeat.
    """
    return (
        sa.select(
            _NODE, state(unreachable_after).label("live_state"), _SEEN.c.seen_at, _SEEN.c.spooled_reports
        )
        .select_from(WITH_HEARTBEAT)
        .where(_NODE.c.state != nodes.REMOVED)
    )
