"""The task sender: send every unfinished task to its node's queue, and re-send it until the node reports a result.

A task is sent as soon as it is written, and checked again every `RESEND` until the node reports its end. Sending is
idempotent: a task that waits in the queue or is in flight stays as it is, and a task that was lost with Redis, or with
the worker that held it, is requeued. Lost tasks are recovered in no other way.

Two kinds of tasks have no due time (`due_at` is null) and cost nothing, however many there are:
- `due` tasks beyond their node's credit: they are scheduled as tasks before them end;
- `sent` tasks of an unreachable node: they lie in its queue, and are checked as soon as the node is reachable again.
  `outbox.wake_waiting` schedules both every second. After Redis lost its data, all sent tasks are due at
  once, even those of unreachable nodes.

Each copy of a task is signed when it is sent, so a copy in a queue is valid for its type's maximum age only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, LiteralString, NamedTuple, assert_never
from uuid import UUID
from zlib import crc32

import msgspec
import psycopg
import sqlalchemy as sa
import structlog
from psycopg.rows import kwargs_row
from redis.asyncio import Redis
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from control_plane.audit.stored_tree import last_head_text
from control_plane.queues import redis_nodes
from control_plane.queues.queue_users import QueueUsers
from control_plane.queues.redis_nodes import RedisUnavailable
from control_plane.queues.relay import (
    AlreadyQueued,
    Enqueued,
    Outcome,
    Outgoing,
    QueueFull,
    Rejected,
    Relay,
    Requeued,
)
from control_plane.work import tables
from control_plane.work.tables import RESEND
from events.ledger.connection import fetch_values, ledger_connection
from events.traces import trace_id
from events.values import NodeId
from read_models import nodes
from tasks.catalogue import CATALOGUE, NotInCatalogue, bounds_of
from tasks.failpoints import failpoint
from tasks.scripts import WORKER_TIMEOUT
from tasks.wire import OrderMessage, OrderTooLarge, encode_order

log = structlog.get_logger()
Seal = Callable[[str, datetime, str | None], str]
"""Function that signs the text of a task, given the time until which a node may begin the task and the newest head of
the ledger, and returns the signed text to send.
"""
BACK_OFF: Final = timedelta(seconds=1)
COPY: Final = min(type_.bounds.maximum_age for type_ in CATALOGUE.values()) / 2
"""Age after which a signed copy of a task that still waits in its queue is replaced by a newly signed copy."""
_AT_ONCE: Final = timedelta(milliseconds=50)
BATCH: Final = 500
TIDY_ROUND: Final = 12
"""Each call of `TaskSender.withdraw_stranded` checks one in this many nodes, so that the queries do not load Redis
noticeably.
"""

# A crash of the server can only lose the fact that a task was sent: it is sent again, without any effect. With the
# other scan and join methods off, the index returns due tasks in their order and nothing else is read, whatever row
# counts the planner estimates.
_SETTINGS: Final = """
select set_config(name, 'off', true) from unnest(array[
  'synchronous_commit', 'enable_bitmapscan', 'enable_seqscan', 'enable_hashjoin', 'enable_mergejoin']) as name
union all select set_config('plan_cache_mode', 'force_generic_plan', true)
"""
# Tasks that were never sent. Their rows claim that they were sent, and are corrected before the commit if the queue did
# not accept them. Tasks that are over by now are skipped.
_UNSENT: Final = """
with taken as (
  delete from work.unsent u using (
    select ctid as place from work.unsent order by unsent.place limit %(batch)s for update skip locked
  ) as first
  where u.ctid = first.place
  returning u.place, u.order_id
)
select taken.order_id, t.*, statement_timestamp() as now, false as silent, false as fresh, 'due' as was,
  null::timestamptz as sent_at, 0 as sends
from taken, lateral (
  select node_id, kind, "order" as text from work.task t where t.order_id = taken.order_id and t.state in ('due', 'sent')
  offset 0  -- one row after the other, whatever row counts the planner estimates
) as t
order by taken.place
"""
# Rows are updated as if each queue accepted its task, and corrected before the commit where one did not.
_DUE: Final = """
with due as (
  select t.ctid as place, t.state as was, t.sent_at, t.sends,
    t.state = 'sent' and t.sent_at > statement_timestamp() - %(copy)s as fresh,
    coalesce((
      select seen_at < statement_timestamp() - %(unreachable)s from work.node_seen seen where seen.node_id = t.node_id
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
returning t.order_id, t.node_id, t.kind, t."order" as text, statement_timestamp() as now, due.silent, due.fresh,
  due.was, due.sent_at, due.sends
"""
_CORRECT: Final = """
update work.task t set state = r.state, due_at = clock_timestamp() + r.pause, sent_at = r.sent_at, sends = r.sends
from unnest(%b::uuid[], %b::text[], %b::interval[], %b::timestamptz[], %b::int4[])
  as r(order_id, state, pause, sent_at, sends)
where t.order_id = r.order_id and t.state in ('due', 'sent')
"""


# An agent begins a session when it starts. If its predecessor was killed, the queue still lists the tasks that it had
# in flight as held by a dead worker. The new agent finishes them from its disk, so they have already ended and are not
# sent again; without this query they would stay in the queue until the node is next checked in its regular turn.
_RESTARTED: Final = """
select node_id from work.node_session
where statement_timestamp() - (expires_at - %b::interval) between %b::interval and %b::interval
"""
_WORKER_TIMEOUT_AGO: Final = (timedelta(seconds=WORKER_TIMEOUT), timedelta(seconds=WORKER_TIMEOUT + 15))
"""Minimum and maximum age of a session that `_restarted` selects. The 15 seconds between them are longer than the
interval at which the dispatcher calls `TaskSender.withdraw_stranded`, so that no restart is missed.
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
class TaskSender:
    """The task sender. Any number may run: each locks the rows that it sends, and skips rows locked by others."""

    engine: AsyncEngine
    redis: Redis
    relay: Relay
    seal: Seal
    unreachable_after: timedelta
    """Time without heartbeat after which a node is unreachable."""
    session_lifetime: timedelta = timedelta(minutes=15)

    async def send_due(self) -> int:
        """Send every due task; return their number. While Redis is unavailable the tasks stay due."""
        sent = 0
        while True:
            try:
                async with self.engine.begin() as conn:
                    ledger = await ledger_connection(conn)
                    # The settings are valid until the end of the transaction.
                    rows = await self._claim(ledger, _SETTINGS, _UNSENT) or await self._claim(ledger, _DUE)
                    if not rows:
                        return sent
                    await self._send(ledger, rows)
            except RedisUnavailable as error:
                log.warning("redis_unavailable", error=error.reason)
                return sent
            failpoint("task_sender.sent")
            sent += len(rows)

    async def _claim(self, conn: psycopg.AsyncConnection, *queries: LiteralString) -> list[_Due]:
        """Run `queries` in one round trip. Return the rows of the last one: tasks to send, which are locked until
        the transaction ends.
        """
        values = {"copy": COPY, "unreachable": self.unreachable_after, "resend": RESEND, "batch": BATCH}
        *before, query = queries
        async with conn.pipeline():
            for each in before:
                await conn.execute(each, prepare=True)
            named = conn.cursor(binary=True, row_factory=kwargs_row(_Due))
            cursor = await named.execute(query, values, prepare=True)
        return await cursor.fetchall()

    async def _send(self, conn: psycopg.AsyncConnection, rows: Sequence[_Due]) -> None:
        queued = await self._already_queued(rows)
        head = await last_head_text(conn)
        sealed = [queued.get(row.order_id) or self._sealed(row, head) for row in rows]
        failpoint("task_sender.before_send")
        answers = iter(await self.relay.enqueue_many([each for each in sealed if isinstance(each, Outgoing)]))
        outcomes = [next(answers) if isinstance(each, Outgoing) else each for each in sealed]
        _log_outcomes(rows, outcomes)
        other = [pair for pair in zip(rows, outcomes, strict=True) if not _as_written(*pair)]
        if other:
            columns = zip(*[_corrected(row, outcome) for row, outcome in other], strict=True)
            await conn.execute(_CORRECT, [list(column) for column in columns], prepare=True)

    async def _already_queued(self, rows: Sequence[_Due]) -> dict[UUID, AlreadyQueued]:
        """Return the tasks that need no new signed copy: their copy is younger than `COPY`, and in the queue or in
        flight.
        """
        sent = [(row.node_id, row.order_id) for row in rows if row.fresh]
        found = zip(sent, await self.relay.look(sent), strict=True)
        return {order_id: where for (_, order_id), where in found if isinstance(where, AlreadyQueued)}

    def _sealed(self, row: _Due, head: str | None) -> Outgoing | Rejected:
        """Return the signed message of a task. If it cannot be encoded, return `Rejected` and raise no exception, so
        that other tasks are still sent.
        """
        try:
            text = self.seal(row.text, row.now + bounds_of(row.kind).maximum_age, head)
            message = encode_order(OrderMessage(row.order_id, row.kind, text), sent_at=row.now)
        except (NotInCatalogue, OrderTooLarge) as error:
            return Rejected(str(error))
        return Outgoing(row.node_id, row.order_id, message)

    async def withdraw_stranded(self, turn: int) -> None:
        """Remove from the queues those tasks that have ended and that a dead worker still has in flight. Tasks of dead
        workers that have not ended are sent again by `send_due`.

        Each call covers one in `TIDY_ROUND` nodes, selected by the number of the call (`turn`), and all nodes of which
        the agent may have restarted. If a node flooded its queue, the queue is deleted; its unfinished tasks are sent
        again when they are next due.
        """
        try:
            async with self.engine.connect() as conn:
                names = await nodes.enrolled(conn)
                new = await _restarted(conn, self.session_lifetime)
                asked = [name for name in names if name in new or _has_its_turn(name, turn)]
                stranded = await self.relay.stranded(asked)
                wanted = await _open(conn, [order for orders in stranded.orders.values() for order in orders])
            for node, orders in stranded.orders.items():
                for order in orders:
                    if order not in wanted:
                        await self.relay.withdraw(node, order)
            if stranded.flooded:
                log.warning("flooded_task_queues_deleted", nodes=stranded.flooded)
                await redis_nodes.forget_queues(self.redis, stranded.flooded)
        except RedisUnavailable as error:
            log.warning("redis_unavailable", error=error.reason)

    async def restore_redis(self) -> None:
        """Restore users, scripts and open tasks in a Redis that lost its data."""
        try:
            if await redis_nodes.inspect(self.redis) is not None:
                users = QueueUsers(self.engine, self.redis)
                await redis_nodes.restore(self.redis, users.restore, self._refill)
        except RedisUnavailable as error:
            log.warning("redis_unavailable", error=error.reason)

    async def _refill(self) -> None:
        async with self.engine.begin() as conn:
            sent = sa.update(tables.task).where(tables.task.c.state == "sent")
            await conn.execute(sent.values(due_at=sa.func.clock_timestamp()))
        await self.send_due()


def _as_written(row: _Due, outcome: Outcome) -> bool:
    """Return whether a task's row needs no correction, because it already matches this outcome of sending the task."""
    match outcome:
        case Enqueued() | Requeued():
            return not row.fresh
        case AlreadyQueued(worker=None):
            return row.fresh
        case AlreadyQueued() | QueueFull() | Rejected():
            return False
        case _:
            assert_never(outcome)


def _corrected(row: _Due, outcome: Outcome) -> tuple[UUID, str, timedelta | None, datetime | None, int]:
    """Return corrected values for a task's row: id, state, time until the next check, time of the last send, and
    number of sends.
    """
    pause = _pause(row, outcome)
    if isinstance(outcome, QueueFull | Rejected):
        return row.order_id, row.was, pause, row.sent_at, row.sends
    enqueued = isinstance(outcome, Enqueued | Requeued)
    sent_at = row.now if enqueued or not row.fresh else row.sent_at
    # A task that is in the queue was sent, even if the process that sent it died before it could record that.
    return row.order_id, "sent", pause, sent_at, max(1, row.sends + enqueued)


def _pause(row: _Due, outcome: Outcome) -> timedelta | None:
    """Return the time until the task is checked again, or None to wait until its node is reachable."""
    match outcome:
        case AlreadyQueued(worker=str(), seconds_left=seconds_left):
            return min(RESEND, timedelta(seconds=seconds_left) + _AT_ONCE)
        case Enqueued() | Requeued() | AlreadyQueued():
            return None if row.silent else RESEND
        case QueueFull():
            return None if row.silent else BACK_OFF
        case Rejected():
            # Usually Redis as a whole refuses all due tasks: signing and offering them every second would leave the
            # task sender no time for anything else.
            return RESEND
        case _:
            assert_never(outcome)


def _log_outcomes(rows: Sequence[_Due], outcomes: Sequence[Outcome]) -> None:
    """Log one line per requeued order, one line for all newly enqueued orders, and one line for all orders that were
    not accepted.
    """
    sent, refused = list[_Due](), list[tuple[_Due, Outcome]]()
    for row, outcome in zip(rows, outcomes, strict=True):
        match outcome:
            case Enqueued():
                sent.append(row)
            case Requeued(worker=worker):
                log.info(
                    "task_requeued_from_dead_worker",
                    order=str(row.order_id),
                    node=row.node_id,
                    worker=worker,
                    trace_id=_trace_id(row),
                )
            case QueueFull() | Rejected():
                refused.append((row, outcome))
            case AlreadyQueued():
                pass
            case _:
                assert_never(outcome)
    if sent:
        log.info(
            "tasks_added_to_node_queues",
            count=len(sent),
            first_task=str(sent[0].order_id),
            first_node=sent[0].node_id,
            # All of them: the line is found by the trace of any of its tasks.
            trace_ids=_trace_ids(sent),
        )
    if refused:
        [(row, reason), *_] = refused
        log.warning(
            "tasks_not_added_to_node_queues",
            count=len(refused),
            first_task=str(row.order_id),
            first_node=row.node_id,
            first_reason=str(reason),
            trace_ids=_trace_ids([row for row, _ in refused]),
        )


class _Traced(msgspec.Struct, frozen=True):
    """The trace context of a task, decoded without the other fields of the task."""

    trace_context: str | None = None


_TRACED: Final = msgspec.json.Decoder(_Traced)


def _trace_ids(rows: Sequence[_Due]) -> list[str]:
    """Return the trace ids of tasks, each once."""
    return [*dict.fromkeys(found for row in rows if (found := _trace_id(row)) is not None)]


def _trace_id(row: _Due) -> str | None:
    try:
        return trace_id(_TRACED.decode(row.text).trace_context)
    except (msgspec.DecodeError, UnicodeError):
        return None  # a text that is not a task: it is rejected, and must not fail the others


def _has_its_turn(node: NodeId, turn: int) -> bool:
    return crc32(node.encode()) % TIDY_ROUND == turn % TIDY_ROUND


async def _restarted(conn: AsyncConnection, session_lifetime: timedelta) -> frozenset[NodeId]:
    """Return the nodes that began a session about one worker timeout ago. An agent begins a session when it starts,
    but also at each renewal, so not all of these agents have restarted.
    """
    ledger = await ledger_connection(conn)
    found = await fetch_values(ledger, _RESTARTED, [session_lifetime, *_WORKER_TIMEOUT_AGO], prepare=True)
    return frozenset(map(NodeId, found))


async def _open(conn: AsyncConnection, order_ids: list[UUID]) -> set[UUID]:
    task = tables.task
    # One array parameter: one parameter per id would be too many when many nodes hold many orders.
    named = sa.literal(order_ids, ARRAY(sa.Uuid()))
    query = sa.select(task.c.order_id).where(
        task.c.order_id == sa.func.any(named), task.c.state.in_(tables.OPEN)
    )
    return set(await conn.scalars(query))
