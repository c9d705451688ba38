"""Nodes whose agent came up just so long ago that its predecessor, if it was killed, is taken for dead by now.

An agent begins a session when it comes up. What the one before it had in hand, and this one finished from its disk,
is held in the queue by nobody who lives, and its task is at its end: without this, nobody would look for it before the
node's turn comes.
"""

from datetime import timedelta
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection

from events.connection import ledger_connection
from events.values import NodeId
from tasks.scripts import WORKER_TIMEOUT

_AGO: Final = (timedelta(seconds=WORKER_TIMEOUT), timedelta(seconds=WORKER_TIMEOUT + 15))
"""As long as some turns of whoever asks."""
_CAME_UP: Final = """
select node_id from work.node_session
where statement_timestamp() - (expires_at - %b::interval) between %b::interval and %b::interval
"""


async def newcomers(conn: AsyncConnection, session_lifetime: timedelta) -> frozenset[NodeId]:
    """Some that only renewed their session are among them."""
    ledger = await ledger_connection(conn)
    cursor = await ledger.execute(_CAME_UP, [session_lifetime, *_AGO], prepare=True)
    return frozenset([NodeId(str(node)) for (node,) in await cursor.fetchall()])
