"""The rows that the dispatcher writes: due tasks, timers and parked streams. Each statement covers a whole batch.

Timers are written before tasks: of two transactions that evaluated the same stream, one for a batch and one because its
timer fired, the one that locks the timer first also writes the tasks first, so they cannot deadlock.

A task's row is inserted as if it was already sent, so that it need not be written twice; until the task sender has sent
it, the task is also listed in `work.unsent`.

The credit of a node (`tasks.catalogue`) limits its tasks in each lane (orders, operations, cancels). A task beyond the
credit waits in state `due` without a due time (`due_at` is null), so the backlog of a dead node delays no other node.
Tasks in state `sent` without a due time lie in the queue of an unreachable node. The dispatcher is not notified when a
task ends or a node becomes reachable again, so `wake_waiting` looks for both once per second. Two dispatchers that run
it at once may both use the same credit: a node then has up to twice as many tasks, and its queue is bounded anyway.

`control_plane.decisions.task_states` shows all states of a row.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Final
from uuid import UUID

import msgspec
import psycopg
from sqlalchemy.ext.asyncio import AsyncEngine

from control_plane.dispatcher.derive import PROCESSES, Evaluation, Task
from control_plane.work.tables import RESEND
from events.ledger.connection import fetch_values, ledger_connection
from events.values import NodeId, SlotId, StreamId
from tasks.catalogue import CREDIT, bounds_of
from tasks.orders import Token

_FORGET_TIMERS: Final = "delete from work.timer where stream_id = any(%b)"
_SET_TIMERS: Final = """
insert into work.timer (stream_id, due_at, lease_ends_at)
select * from unnest(%b::text[], %b::timestamptz[], %b::timestamptz[])
on conflict (stream_id) do update set due_at = excluded.due_at, lease_ends_at = excluded.lease_ends_at
 where (timer.due_at, timer.lease_ends_at) is distinct from (excluded.due_at, excluded.lease_ends_at)
"""
_HASTEN: Final = (
    "update work.timer set due_at = %(now)s where stream_id = any(%(streams)b) and due_at > %(now)s"
)
_UNPARK: Final = "delete from work.parked where stream_id = any(%b)"
_PARK: Final = """
insert into work.parked (stream_id, error, since) select *, %s from unnest(%s::text[], %s::text[])
on conflict (stream_id) do update set error = excluded.error, since = excluded.since
"""
# An order that was derived before keeps its row. An order that is older than the newest of its slot is inserted as
# superseded: evaluating an old range of the ledger again, or after rows were lost, must not send it.
_INSERT: Final = """
with written as (
insert into work.task (order_id, node_id, slot_id, allocation_id, kind, epoch, position, "order", task_id, attempt, lane,
  state, due_at, created_at, sent_at, ended_at, sends)
select order_id, node_id, slot_id, allocation_id, kind, epoch, position, "order", task_id, attempt, lane,
  case when outdated then 'superseded' when full_up then 'due' else 'sent' end,
  case when not full_up then clock_timestamp() + %(resend)s end,
  %(now)s,
  case when not (outdated or full_up) then %(now)s end,
  case when outdated then %(now)s end,
  (not (outdated or full_up))::int
from (
  select r.*,
    newer or exists (
      select from work.task t where t.node_id = r.node_id and t.slot_id = r.slot_id
        and (t.epoch, t.position) > (r.epoch, r.position)
    ) as outdated,
    nth + (
      select count(*) from (
        select from work.task t where t.node_id = r.node_id and t.lane = r.lane
          and (t.state = 'sent' or t.state = 'due' and t.due_at is not null)
        limit r.credit
      ) as on_the_way
    ) > credit or exists (
      select from work.task t where t.node_id = r.node_id and t.lane = r.lane and t.state = 'due' and t.due_at is null
    ) as full_up
  from unnest(%(order_ids)b::uuid[], %(nodes)b::text[], %(slots)b::text[], %(allocations)b::text[],
    %(kinds)b::text[], %(epochs)b::int4[], %(positions)b::int8[], %(texts)b::text[], %(task_ids)b::uuid[],
    %(attempts)b::int4[], %(lanes)b::text[], %(newer)b::bool[], %(nths)b::int4[], %(credits)b::int4[])
    as r(order_id, node_id, slot_id, allocation_id, kind, epoch, position, "order", task_id, attempt, lane,
      newer, nth, credit)
  offset 0  -- evaluate the two flags once, although they are used several times
) as r
on conflict (order_id) do nothing
returning order_id, state)
insert into work.unsent (order_id) select order_id from written where state = 'sent'
"""
_SUPERSEDE: Final = """
update work.task t set state = 'superseded', ended_at = %(now)s
from unnest(%(nodes)b::text[], %(slots)b::text[], %(epochs)b::int4[], %(positions)b::int8[], %(newer)b::bool[])
  as r(node_id, slot_id, epoch, position, newer)
where not r.newer and t.node_id = r.node_id and t.slot_id = r.slot_id and t.state in ('due', 'sent')
  and (t.epoch, t.position) < (r.epoch, r.position)
"""
# Earlier tries of a task end with a newer one; a cancellation of an earlier try has nothing left to cancel.
_SUPERSEDE_TRIES: Final = """
update work.task t set state = 'superseded', ended_at = coalesce(t.ended_at, %s)
from unnest(%s::uuid[], %s::int4[]) as r(task_id, attempt)
where t.task_id = r.task_id and t.attempt < r.attempt and t.state <> 'superseded'
"""
# A task can end before its rows are written; no node may start it after that.
_CLOSE: Final = """
update work.task t set state = r.state, ended_at = %s
from unnest(%s::uuid[], %s::text[]) as r(task_id, state)
where t.task_id = r.task_id and t.state in ('due', 'sent')
"""
_HOLD: Final = "select from work.timer where stream_id = %s for update skip locked"
_OVERDUE: Final = """
select stream_id from work.timer where due_at <= %s and split_part(stream_id, '-', 1) = any(%s)
order by due_at limit %s
"""
_CREDIT: Final = msgspec.json.encode(dict(CREDIT)).decode()
# Step through the index from waiting node to waiting node: the cost grows with the number of waiting nodes and lanes,
# not with the number of tasks. A node that never sent a heartbeat counts as reachable.
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


async def write(conn: psycopg.AsyncConnection, found: Sequence[Evaluation], now: datetime) -> None:
    """Write the tasks and timers of evaluated streams. An order that is derived several times has one row.

    Call this in a pipeline of the connection.
    """
    await _write_timers(conn, found)
    await _write_parked(conn, found, now)
    if tasks := [task for each in found for task in each.tasks]:
        rows = {**_columns(tasks), "now": now, "resend": RESEND}
        await conn.execute(_SUPERSEDE, rows, prepare=True)
        await conn.execute(_INSERT, rows, prepare=True)
        if tries := [(each.task_id, each.attempt) for each in tasks if each.task_id is not None]:
            await conn.execute(
                _SUPERSEDE_TRIES, [now, *(list(column) for column in zip(*tries, strict=True))]
            )
    if finished := [
        (UUID(each.stream.removeprefix("task-")), each.final_state) for each in found if each.final_state
    ]:
        await conn.execute(_CLOSE, [now, *(list(column) for column in zip(*finished, strict=True))])


async def hasten(conn: psycopg.AsyncConnection, streams: Sequence[StreamId], now: datetime) -> None:
    """Make the timers of these streams due, if they have one."""
    if streams:
        await conn.execute(_HASTEN, {"streams": [*streams], "now": now}, prepare=True)


async def wake_waiting(engine: AsyncEngine, unreachable_after: timedelta) -> int:
    """Schedule the waiting tasks of nodes that have credit or are reachable again; return the number of tasks."""
    async with engine.begin() as conn:
        ledger = await ledger_connection(conn)
        return (
            await ledger.execute(_WAKE, {"credit": _CREDIT, "unreachable": unreachable_after}, prepare=True)
        ).rowcount


async def hold_timer(conn: psycopg.AsyncConnection, stream: StreamId) -> bool:
    """Lock the stream's timer until the transaction ends. Return False if it is already locked or was deleted."""
    return (await conn.execute(_HOLD, [stream], prepare=True)).rowcount == 1


async def overdue(conn: psycopg.AsyncConnection, now: datetime, limit: int) -> list[StreamId]:
    """Return streams with a due timer, oldest first; timers of stream kinds unknown to this release are skipped."""
    return [*map(StreamId, await fetch_values(conn, _OVERDUE, [now, [*PROCESSES], limit], prepare=True))]


async def _write_timers(conn: psycopg.AsyncConnection, found: Sequence[Evaluation]) -> None:
    # Every writer uses one order, so that two writers of the same timers never deadlock.
    due_times = sorted(
        ((each.stream, each.due_at, each.lease_ends_at) for each in found if each.due_at is not None),
        key=itemgetter(0),
    )
    if never := sorted(each.stream for each in found if each.due_at is None):
        await conn.execute(_FORGET_TIMERS, [never], prepare=True)
    if due_times:
        await conn.execute(
            _SET_TIMERS, [list(column) for column in zip(*due_times, strict=True)], prepare=True
        )


async def _write_parked(conn: psycopg.AsyncConnection, found: Sequence[Evaluation], now: datetime) -> None:
    if healthy := [each.stream for each in found if each.error is None]:
        await conn.execute(_UNPARK, [healthy], prepare=True)
    if failed := [(each.stream, each.error) for each in found if each.error is not None]:
        await conn.execute(_PARK, [now, *(list(column) for column in zip(*failed, strict=True))])


Column = Sequence[UUID | None] | Sequence[str | None] | Sequence[int | None]


def _columns(tasks: Sequence[Task]) -> dict[str, Column]:
    """Return the tasks of a batch as columns of `work.task`, for one insert statement.

    `newer` states for each task whether the batch has a newer order for its slot. `nths` numbers the tasks of each node
    and lane (orders, operations, cancels) within the batch.
    """
    newest: dict[SlotId | None, Token] = {}
    for each in tasks:
        if each.token is not None:
            newest[each.slot_id] = max(each.token, newest.get(each.slot_id, each.token))
    bounds = [bounds_of(each.kind) for each in tasks]
    counts: Counter[tuple[NodeId, str]] = Counter()
    nths: list[int] = []
    for each, bound in zip(tasks, bounds, strict=True):
        counts[each.node_id, bound.lane] += 1
        nths.append(counts[each.node_id, bound.lane])
    return {
        "order_ids": [each.order_id for each in tasks],
        "nodes": [each.node_id for each in tasks],
        "slots": [each.slot_id for each in tasks],
        "allocations": [each.allocation_id for each in tasks],
        "kinds": [each.kind for each in tasks],
        "epochs": [None if each.token is None else each.token.epoch for each in tasks],
        "positions": [None if each.token is None else each.token.position for each in tasks],
        "texts": [each.text for each in tasks],
        "task_ids": [each.task_id for each in tasks],
        "attempts": [each.attempt for each in tasks],
        "lanes": [bound.lane for bound in bounds],
        "newer": [each.token is not None and each.token < newest[each.slot_id] for each in tasks],
        "nths": nths,
        "credits": [bound.credit for bound in bounds],
    }
