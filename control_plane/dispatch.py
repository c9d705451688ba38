"""From facts to orders on their way: the dispatcher's effects, each in the transaction of its checkpoint.

For every allocation that a batch of the log concerns, its process is asked what is due: orders become task
rows, waits become timers, and a command that is due is carried out through the one road. The rows say what is
to be sent, so a crash between commit and queue loses nothing; sending is the relay's, here and again by the
sweeper. An allocation whose step fails is parked with its error, and the others go on.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import assert_never

import sqlalchemy as sa
import structlog
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane import work
from control_plane.commands.allocations import expire_lease, miss_deadline
from control_plane.handle import Handle, database_time
from control_plane.histories import allocation_history
from control_plane.processes.allocation import Expire, MissDeadline, Wait, due
from events.allocations import AllocationFact
from events.envelope import Recorded
from events.facts import Fact
from events.values import AllocationId
from tasks.failpoints import failpoint
from tasks.orders import Order

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Dispatcher:
    handle: Handle

    async def apply(self, conn: AsyncConnection, batch: Sequence[Recorded[Fact]]) -> None:
        """Deal with a batch of the log."""
        for allocation in _concerned(batch):
            await self.step(conn, allocation)
        failpoint("dispatch.before_checkpoint")

    async def step(self, conn: AsyncConnection, allocation: AllocationId) -> None:
        """See to one allocation: write its due orders and its timer, or park it."""
        history = await allocation_history(conn, allocation)
        now = await self.handle.clock(conn)
        try:
            what_is_due = due(history, now)
        except Exception as error:  # whatever is wrong with one stream must not stop the others
            log.exception("allocation_parked", allocation=allocation)
            await _park(conn, allocation, now, error)
            return
        until: datetime | None = None
        for each in what_is_due:
            match each:
                case Order():
                    await _write(conn, each, now)
                case Wait(until=moment):
                    until = moment
                case MissDeadline():
                    await self.handle(miss_deadline(allocation))
                case Expire():
                    await self.handle(expire_lease(allocation))
                case _:
                    assert_never(each)
        await _set_timer(conn, allocation, until)


def _concerned(batch: Iterable[Recorded[Fact]]) -> list[AllocationId]:
    """Allocations with facts of their own in the batch, each once, in the log's order."""
    found = (each.fact.allocation_id for each in batch if isinstance(each.fact, AllocationFact))
    return list(dict.fromkeys(found))


async def _write(conn: AsyncConnection, order: Order, now: datetime) -> None:
    """One row an order, however often it is derived; what the slot was told before is superseded."""
    task = work.task
    row = {
        "order_id": order.order_id,
        "node_id": order.node_id,
        "slot_id": order.slot_id,
        "allocation_id": order.allocation_id,
        "kind": order.body.kind,
        "epoch": order.token.epoch,
        "position": order.token.position,
        "order": order.model_dump_json(),
        "state": "due",
        "due_at": now,
        "created_at": now,
    }
    older = sa.tuple_(task.c.epoch, task.c.position) < sa.tuple_(*map(sa.literal, order.token))
    await conn.execute(
        sa.update(task)
        .where(task.c.slot_id == order.slot_id, task.c.state.in_(("due", "sent")), older)
        .values(state="superseded", ended_at=now)
    )
    await conn.execute(insert(task).values(row).on_conflict_do_nothing(index_elements=["order_id"]))


async def _set_timer(conn: AsyncConnection, allocation: AllocationId, until: datetime | None) -> None:
    if until is None:
        await conn.execute(sa.delete(work.timer).where(work.timer.c.allocation_id == allocation))
        return
    statement = insert(work.timer).values(allocation_id=allocation, due_at=until)
    await conn.execute(
        statement.on_conflict_do_update(index_elements=["allocation_id"], set_={"due_at": until})
    )


async def _park(conn: AsyncConnection, allocation: AllocationId, now: datetime, error: Exception) -> None:
    values = {"since": now, "error": f"{type(error).__name__}: {error}"}
    statement = insert(work.parked).values(allocation_id=allocation, **values)
    await conn.execute(statement.on_conflict_do_update(index_elements=["allocation_id"], set_=values))


async def overdue_timers(conn: AsyncConnection, limit: int) -> list[AllocationId]:
    """Allocations whose moment has come, oldest first."""
    query = (
        sa.select(work.timer.c.allocation_id)
        .where(work.timer.c.due_at <= await database_time(conn))
        .order_by(work.timer.c.due_at)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return [AllocationId(found) for found in await conn.scalars(query)]
