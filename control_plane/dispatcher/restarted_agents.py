"""Nodes with an agent that restarted one worker timeout ago, so that tasks held by its predecessor can be reclaimed.

An agent begins a session when it starts. If its predecessor was killed, the queue still lists the tasks that it had in
flight as held by a dead worker. The new agent finishes them from its disk, so they have already ended and are not sent
again; without this query they would stay in the queue until the node is next checked in its regular turn.
"""

from datetime import timedelta
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection

from events.ledger.connection import fetch_values, ledger_connection
from events.values import NodeId
from tasks.scripts import WORKER_TIMEOUT

_AGO: Final = (timedelta(seconds=WORKER_TIMEOUT), timedelta(seconds=WORKER_TIMEOUT + 15))
"""The worker timeout, and 15 seconds more: some turns of the caller's loop."""
_CAME_UP: Final = """
select node_id from work.node_session
where statement_timestamp() - (expires_at - %b::interval) between %b::interval and %b::interval
"""


async def newcomers(conn: AsyncConnection, session_lifetime: timedelta) -> frozenset[NodeId]:
    """Return the nodes with a session that began one worker timeout ago; some of them only renewed their session."""
    ledger = await ledger_connection(conn)
    found = await fetch_values(ledger, _CAME_UP, [session_lifetime, *_AGO], prepare=True)
    return frozenset(map(NodeId, found))
