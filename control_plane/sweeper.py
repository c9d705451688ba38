"""Sees that every task that is not at its end is in its node's queue: the first send and every other.

A task is sent at once after it was written, and looked at again every `RESEND` while the node has not told its end.
Sending is idempotent, so a task that waits in the queue or is being worked on stays as it is, and one that was lost
with Redis, or with the worker that held it, is put back. There is no other way to recover.

Two sorts of tasks have no moment (`due_at` is null) and cost nobody a look, however many there are:
- `due` ones beyond their node's credit: as many go on as tasks before them came to their end;
- `sent` ones whose node is silent: they lie in its queue, and are looked at again as soon as it is heard.
  `control_plane.credit` gives both their moment, every second. A Redis that lost its memory is another matter: then
  all that was sent is due at once, whoever is silent.

Each sending is signed anew, so a copy in a queue is good for its type's maximum age and no longer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, LiteralString, NamedTuple, assert_never
from uuid import UUID
from zlib import crc32

import psycopg
import sqlalchemy as sa
import structlog
from redis.asyncio import Redis
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from control_plane import redis_nodes, work
from control_plane.newcomers import newcomers
from control_plane.queue_users import QueueUsers
from control_plane.redis_nodes import RedisAway
from control_plane.relay import (
    AlreadyThere,
    Enqueued,
    NotTaken,
    Outcome,
    Outgoing,
    QueueFull,
    Relay,
    Requeued,
)
from control_plane.work import RESEND
from events.connection import ledger_connection
from events.values import NodeId
from read_models import nodes
from tasks.catalogue import CATALOGUE, NotInCatalogue, bounds_of
from tasks.failpoints import failpoint
from tasks.wire import OrderMessage, OrderTooLarge, encode_order

log = structlog.get_logger()
Seal = Callable[[str, datetime], str]
"""A task's text, and until when a node may begin it, to the text that is sent."""
BACK_OFF: Final = timedelta(seconds=1)
COPY: Final = min(type_.bounds.maximum_age for type_ in CATALOGUE.values()) / 2
"""After which a copy that still waits is replaced by one that was signed anew."""
_AT_ONCE: Final = timedelta(milliseconds=50)
BATCH: Final = 500
TIDY_ROUND: Final = 12
"""One in so many nodes is tidied up at a time: their queues are asked, which they should not notice."""

# What a crash of the server takes back is that a task was sent: it is sent again, and nobody notices. Without the other
# ways to read and join, the index gives what is due in its order, and nothing else is looked at, whatever the planner
# believes how much there is.
_SETTINGS: Final = """
select set_config(name, 'off', true) from unnest(array[
  'synchronous_commit', 'enable_bitmapscan', 'enable_seqscan', 'enable_hashjoin', 'enable_mergejoin']) as name
union all select set_config('plan_cache_mode', 'force_generic_plan', true)
"""
# What was never sent. Its row says that it was, and is put right before the commit where its queue did not take it. Of
# a task that is over by now nothing is left to do.
_UNSENT: Final = """
with taken as (
  delete from work.unsent u using (
    select ctid as place from work.unsent order by unsent.place limit %(batch)s for update skip locked
  ) as first
  where u.ctid = first.place
  returning u.place, u.order_id
)
select taken.order_id, t.*, statement_timestamp(), false, false, 'due', null::timestamptz, 0
from taken, lateral (
  select node_id, kind, "order" from work.task t where t.order_id = taken.order_id and t.state in ('due', 'sent')
  offset 0  -- one after the other, whatever the planner believes how many there are
) as t
order by taken.place
"""
# Written as if each queue took what it is sent, and put right before the commit where one did not.
_DUE: Final = """
with due as (
  select t.ctid as place, t.state as was, t.sent_at, t.sends,
    t.state = 'sent' and t.sent_at > statement_timestamp() - %(copy)s as fresh,
    coalesce((
      select seen_at < statement_timestamp() - %(silent)s from work.node_seen seen where seen.node_id = t.node_id
    ), false) as silent
  from work.task t
  where t.state in ('due', 'sent') and t.due_at <= statement_timestamp()
  order by t.due_at limit %(batch)s for update skip locked
)
update work.task t set state = 'sent',
  due_at = case when not due.silent then clock_timestamp() + %(resend)s end,
  sent_at = case when due.fresh then t.sent_at else clock_timestamp() end,
  sends = t.sends + (not due.fresh)::int
from due where t.ctid = due.place
returning t.order_id, t.node_id, t.kind, t."order", statement_timestamp(), due.silent, due.fresh, due.was, due.sent_at,
  due.sends
"""
_PUT_RIGHT: Final = """
update work.task t set state = r.state, due_at = clock_timestamp() + r.pause, sent_at = r.sent_at, sends = r.sends
from unnest(%b::uuid[], %b::text[], %b::interval[], %b::timestamptz[], %b::int4[])
  as r(order_id, state, pause, sent_at, sends)
where t.order_id = r.order_id and t.state in ('due', 'sent')
"""


class _Due(NamedTuple):
    order_id: UUID
    node_id: NodeId
    kind: str
    text: str
    now: datetime
    silent: bool
    fresh: bool
    was: str
    sent_at: datetime | None
    sends: int


@dataclass(frozen=True, slots=True)
class Sweeper:
    """Sends what is due. Any number may run: who looks at a row has it, and others pass it."""

    engine: AsyncEngine
    redis: Redis
    relay: Relay
    seal: Seal
    silent_after: timedelta
    """How long a node may be unheard of before it counts as silent."""
    session_lifetime: timedelta = timedelta(minutes=15)

    async def send_due(self) -> int:
        """Send every task that is due; returns how many were. A Redis that is away leaves them due."""
        sent = 0
        while True:
            try:
                async with self.engine.begin() as conn:
                    ledger = await ledger_connection(conn)
                    if not (rows := await self._claim(ledger, _UNSENT) or await self._claim(ledger, _DUE)):
                        return sent
                    await self._send(ledger, rows)
            except RedisAway as error:
                log.warning("redis_away", error=error.reason)
                return sent
            failpoint("sweeper.sent")
            sent += len(rows)

    async def _claim(self, conn: psycopg.AsyncConnection, query: LiteralString) -> list[_Due]:
        """Tasks to send, which are ours until the transaction ends."""
        values = {"copy": COPY, "silent": self.silent_after, "resend": RESEND, "batch": BATCH}
        async with conn.pipeline():
            await conn.execute(_SETTINGS)
            cursor = await conn.cursor(binary=True).execute(query, values, prepare=True)
        return [_Due(*row) for row in await cursor.fetchall()]

    async def _send(self, conn: psycopg.AsyncConnection, rows: Sequence[_Due]) -> None:
        there = await self._there(rows)
        sealed = [there.get(row.order_id) or self._sealed(row) for row in rows]
        failpoint("sweeper.before_send")
        answers = iter(await self.relay.enqueue_many([each for each in sealed if isinstance(each, Outgoing)]))
        outcomes = [next(answers) if isinstance(each, Outgoing) else each for each in sealed]
        _tell(rows, outcomes)
        other = [pair for pair in zip(rows, outcomes, strict=True) if not _as_written(*pair)]
        if other:
            columns = zip(*[_true(row, outcome) for row, outcome in other], strict=True)
            await conn.execute(_PUT_RIGHT, [list(column) for column in columns], prepare=True)

    async def _there(self, rows: Sequence[_Due]) -> dict[UUID, AlreadyThere]:
        """Which of the tasks that were sent are where they belong, as copies that are good for long enough."""
        sent = [(row.node_id, row.order_id) for row in rows if row.fresh]
        found = zip(sent, await self.relay.look(sent), strict=True)
        return {order_id: where for (_, order_id), where in found if isinstance(where, AlreadyThere)}

    def _sealed(self, row: _Due) -> Outgoing | NotTaken:
        """The message of a task; a row that another release wrote, and that cannot be sent, harms no other."""
        try:
            text = self.seal(row.text, row.now + bounds_of(row.kind).maximum_age)
            message = encode_order(OrderMessage(row.order_id, row.kind, text), sent_at=row.now)
        except (NotInCatalogue, OrderTooLarge) as error:
            return NotTaken(str(error))
        return Outgoing(row.node_id, row.order_id, message)

    async def withdraw_stranded(self, turn: int) -> None:
        """Take back what dead workers still hold of tasks that are at their end; the others are sent again anyway.

        Of one in `TIDY_ROUND` nodes, another at each turn, and of newcomers. A queue that its node flooded is taken
        away: what was sent to it is looked for when it is due again, and sent anew.
        """
        try:
            async with self.engine.connect() as conn:
                names = await nodes.enrolled(conn)
                new = await newcomers(conn, self.session_lifetime)
                asked = [name for name in names if name in new or _has_its_turn(name, turn)]
                stranded = await self.relay.stranded(asked)
                wanted = await _open(conn, [order for orders in stranded.orders.values() for order in orders])
            for node, orders in stranded.orders.items():
                for order in orders:
                    if order not in wanted:
                        await self.relay.withdraw(node, order)
            if stranded.flooded:
                log.warning("queue_flooded", nodes=stranded.flooded)
                await redis_nodes.forget_queues(self.redis, stranded.flooded)
        except RedisAway as error:
            log.warning("redis_away", error=error.reason)

    async def restore_redis(self) -> None:
        """Give a Redis that lost its memory what it needs: users, scripts, and every open task."""
        try:
            if await redis_nodes.inspect(self.redis) is not None:
                users = QueueUsers(self.engine, self.redis)
                await redis_nodes.restore(self.redis, users.restore, self._refill)
        except RedisAway as error:
            log.warning("redis_away", error=error.reason)

    async def _refill(self) -> None:
        async with self.engine.begin() as conn:
            sent = sa.update(work.task).where(work.task.c.state == "sent")
            await conn.execute(sent.values(due_at=sa.func.clock_timestamp()))
        await self.send_due()


def _as_written(row: _Due, outcome: Outcome) -> bool:
    """Whether the row says already what became of the task."""
    match outcome:
        case Enqueued() | Requeued():
            return not row.fresh
        case AlreadyThere(worker=None):
            return row.fresh
        case AlreadyThere() | QueueFull() | NotTaken():
            return False
        case _:
            assert_never(outcome)


def _true(row: _Due, outcome: Outcome) -> tuple[UUID, str, timedelta | None, datetime | None, int]:
    """What the row is to say: its id, state, pause, when it was sent last, and how often."""
    pause = _pause(row, outcome)
    if isinstance(outcome, QueueFull | NotTaken):
        return row.order_id, row.was, pause, row.sent_at, row.sends
    anew = isinstance(outcome, Enqueued | Requeued)
    sent_at = row.now if anew or not row.fresh else row.sent_at
    # What is there was sent, also if whoever sent it died before he could write that.
    return row.order_id, "sent", pause, sent_at, max(1, row.sends + anew)


def _pause(row: _Due, outcome: Outcome) -> timedelta | None:
    """How long until the task is looked at again; None: until its node is heard."""
    match outcome:
        case AlreadyThere(worker=str(), patience=patience):
            return min(RESEND, timedelta(seconds=patience) + _AT_ONCE)
        case Enqueued() | Requeued() | AlreadyThere():
            return None if row.silent else RESEND
        case QueueFull():
            return None if row.silent else BACK_OFF
        case NotTaken():
            # As a rule it is Redis that takes nothing, and nothing of all that is due: signed anew and offered every
            # second, that would keep the sweeper from everything else.
            return RESEND
        case _:
            assert_never(outcome)


def _tell(rows: Sequence[_Due], outcomes: Sequence[Outcome]) -> None:
    """A line for each order that a dead worker had, one for all that are new in a queue, one for all not taken."""
    sent, refused = 0, list[tuple[_Due, Outcome]]()
    for row, outcome in zip(rows, outcomes, strict=True):
        match outcome:
            case Enqueued():
                sent += 1
            case Requeued(worker=worker):
                log.info("task_requeued", order=str(row.order_id), node=row.node_id, worker=worker)
            case QueueFull() | NotTaken():
                refused.append((row, outcome))
            case AlreadyThere():
                pass
            case _:
                assert_never(outcome)
    if sent:
        log.info("tasks_sent", count=sent, first=str(rows[0].order_id), node=rows[0].node_id)
    if refused:
        [(row, why), *_] = refused
        first = {"first": str(row.order_id), "node": row.node_id, "outcome": str(why)}
        log.warning("tasks_not_taken", count=len(refused), **first)


def _has_its_turn(node: NodeId, turn: int) -> bool:
    return crc32(node.encode()) % TIDY_ROUND == turn % TIDY_ROUND


async def _open(conn: AsyncConnection, order_ids: list[UUID]) -> set[UUID]:
    task = work.task
    # One array: a parameter for each would be too many when many nodes hold many.
    named = sa.literal(order_ids, ARRAY(sa.Uuid()))
    query = sa.select(task.c.order_id).where(
        task.c.order_id == sa.func.any(named), task.c.state.in_(work.OPEN)
    )
    return set(await conn.scalars(query))
