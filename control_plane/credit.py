"""Tasks that wait without a moment go on: as many as their node has credit for, once it is heard.

`due` ones wait behind those that use up their node's credit for their lane, `sent` ones lie in a silent node's queue.
Nobody tells that a task ended or that a node is heard again; both are looked for every second, from waiting node to
waiting node, so a backlog costs as many looks as it has nodes and lanes, and never as many as it has tasks. Of two
dispatchers that look at once, both may find the same credit: a node then has up to twice as many, and its queue is
bounded anyway.
"""

from datetime import timedelta
from typing import Final

import msgspec
from sqlalchemy.ext.asyncio import AsyncEngine

from events.connection import ledger_connection
from tasks.catalogue import CREDIT

# From node to node through the index, whatever each has waiting. A node that was never heard is not known to be silent.
_WAKE: Final = """
with recursive waiting as (
  (select node_id, lane from work.task where due_at is null and state in ('due', 'sent')
   order by node_id, lane limit 1)
  union all
  select further.* from waiting, lateral (
    select node_id, lane from work.task where due_at is null and state in ('due', 'sent')
      and (node_id, lane) > (waiting.node_id, waiting.lane) order by node_id, lane limit 1
  ) as further
), heard as (
  select waiting.*, %(credit)s::jsonb -> lane as credit from waiting left join work.node_seen using (node_id)
  where coalesce(seen_at >= statement_timestamp() - %(silent)s, true)
), room as (
  select heard.*, greatest(0, credit::int - (
    select count(*) from work.task t where t.node_id = heard.node_id and t.lane = heard.lane
      and (t.state = 'sent' or t.state = 'due' and t.due_at is not null)
  )) as room from heard
), woken as (
  select further.* from room, lateral (
    (select order_id from work.task t where t.node_id = room.node_id and t.lane = room.lane
      and t.due_at is null and t.state = 'sent')
    union all
    (select order_id from work.task t where t.node_id = room.node_id and t.lane = room.lane
      and t.due_at is null and t.state = 'due' order by t.created_at limit room.room)
  ) as further
)
update work.task t set due_at = clock_timestamp() from woken
where t.order_id = woken.order_id and t.due_at is null and t.state in ('due', 'sent')
"""

_CREDIT: Final = msgspec.json.encode(dict(CREDIT)).decode()


async def wake_waiting(engine: AsyncEngine, silent_after: timedelta) -> int:
    """Give tasks their moment whose node has credit again, or is heard again; returns how many."""
    async with engine.begin() as conn:
        ledger = await ledger_connection(conn)
        return (
            await ledger.execute(_WAKE, {"credit": _CREDIT, "silent": silent_after}, prepare=True)
        ).rowcount
