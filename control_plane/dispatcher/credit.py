"""Scheduling of tasks that wait without a due time, once their node has credit or sends heartbeats again.

The credit of a node limits its tasks in each lane (orders, operations, cancels). Tasks in state `due` without a due
time wait until earlier tasks of their lane end. Tasks in state `sent` without a due time lie in the queue of an
unreachable node. No event marks the end of a task or the return of a node, so one query per second looks for both. It
steps from waiting node to waiting node, so its cost grows with the number of waiting nodes and lanes and not with the
number of tasks. Two dispatchers that run it at once may both use the same credit: a node then has up to twice as many
tasks, and its queue is bounded anyway.
"""

from datetime import timedelta
from typing import Final

import msgspec
from sqlalchemy.ext.asyncio import AsyncEngine

from events.ledger.connection import ledger_connection
from tasks.catalogue import CREDIT

# Step through the index from node to node, whatever the backlog of each. A node that never sent a heartbeat counts as
# reachable.
_WAKE: Final = """
with recursive waiting as (
  (select node_id, lane from work.task where due_at is null and state in ('due', 'sent')
   order by node_id, lane limit 1)
  union all
  select further.* from waiting, lateral (
    select node_id, lane from work.task where due_at is null and state in ('due', 'sent')
      and (node_id, lane) > (waiting.node_id, waiting.lane) order by node_id, lane limit 1
  ) as further
), reachable as (
  select waiting.*, %(credit)s::jsonb -> lane as credit from waiting left join work.node_seen using (node_id)
  where coalesce(seen_at >= statement_timestamp() - %(unreachable)s, true)
), room as (
  select reachable.*, greatest(0, credit::int - (
    select count(*) from work.task t where t.node_id = reachable.node_id and t.lane = reachable.lane
      and (t.state = 'sent' or t.state = 'due' and t.due_at is not null)
  )) as room from reachable
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


async def wake_waiting(engine: AsyncEngine, unreachable_after: timedelta) -> int:
    """Schedule the waiting tasks of nodes that have credit or are reachable again; return the number of tasks."""
    async with engine.begin() as conn:
        ledger = await ledger_connection(conn)
        return (
            await ledger.execute(_WAKE, {"credit": _CREDIT, "unreachable": unreachable_after}, prepare=True)
        ).rowcount
