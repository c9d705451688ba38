"""From facts to orders on their way: the dispatcher's effects, each in the transaction of its checkpoint.

For every allocation that a batch of the log concerns, its process is asked what is due: orders become task
rows, and moments become timers. The rows say what is to be sent, so a crash between commit and queue loses nothing;
sending is the relay's, here and again by the sweeper.

What time alone decides waits for its timer, even when its moment is long past: the log tells what happened while
nobody listened, and more of it may be under way. A timer that rings is looked at with all that was heard by then,
and its command is carried out through the one road with no transaction open here, so that it waits for nobody who
waits for us.

An allocation whose step fails is parked with its error and looked at again later, and the others go on.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, assert_never

import sqlalchemy as sa
import structlog
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from control_plane import work
from control_plane.commands.allocations import expire_lease, miss_deadline
from control_plane.handle import Command, Handle
from control_plane.histories import allocation_history
from control_plane.outage import DATABASE_AWAY
from control_plane.processes.allocation import Due, Expire, MissDeadline, Wait, due
from events.allocations import AllocationFact
from events.envelope import Recorded
from events.facts import Fact
from events.values import AllocationId
from tasks.failpoints import failpoint
from tasks.orders import Order
from tasks.wire import refuse_too_large

log = structlog.get_logger()
LOOK_AGAIN: Final = timedelta(seconds=30)
"""After which a parked allocation is looked at again."""


@dataclass(frozen=True, slots=True)
class Dispatcher:
    handle: Handle

    async def apply(self, conn: AsyncConnection, batch: Sequence[Recorded[Fact]]) -> None:
        """Deal with a batch of the log."""
        concerned = _concerned(batch)
        await _unpark(conn, concerned)
        for allocation in concerned:
            await self._look(conn, allocation)
        failpoint("dispatch.before_commit")

    async def ring(self, engine: AsyncEngine, allocation: AllocationId) -> None:
        """An allocation's moment has come: do what is due, with all that was heard of it by now."""
        async with engine.begin() as conn:
            await _unpark(conn, [allocation])
            # Before the history is read: the follower, with a newer one, would otherwise set the timer first and we
            # would put back the older moment.
            await _hold_timer(conn, allocation)
            command = await self._look(conn, allocation)
        if command is None:
            return
        try:
            await self.handle(command)
        except DATABASE_AWAY:
            raise
        except Exception as error:  # whatever is wrong with one stream must not stop the others
            log.exception("allocation_parked", allocation=allocation)
            async with engine.begin() as conn:
                await _park(conn, allocation, await self.handle.clock(conn), error)

    async def _look(self, conn: AsyncConnection, allocation: AllocationId) -> Command | None:
        """Write an allocation's due orders and its timer, or park it; returns what time alone decides now."""
        now = await self.handle.clock(conn)
        try:
            what_is_due = due(await allocation_history(conn, allocation), now)
            rows = [_row(each, now) for each in what_is_due if isinstance(each, Order)]
        except DATABASE_AWAY:
            raise
        except Exception as error:  # whatever is wrong with one stream must not stop the others
            log.exception("allocation_parked", allocation=allocation)
            await _park(conn, allocation, now, error)
            return None
        for row in rows:
            await _write(conn, row)
        await _set_timer(conn, allocation, _moment(what_is_due, now))
        return _by_the_clock(allocation, what_is_due)


def _moment(what_is_due: Iterable[Due], now: datetime) -> datetime | None:
    """When to look again although nothing happened."""
    moments: list[datetime] = []
    for each in what_is_due:
        match each:
            case Wait(until=datetime() as moment):
                moments.append(moment)
            case Order() | Wait():
                pass
            case MissDeadline() | Expire():
                moments.append(now)
            case _:
                assert_never(each)
    return min(moments, default=None)


def _by_the_clock(allocation: AllocationId, what_is_due: Iterable[Due]) -> Command | None:
    for each in what_is_due:
        if isinstance(each, MissDeadline):
            return miss_deadline(allocation)
        if isinstance(each, Expire):
            return expire_lease(allocation)
    return None


def _concerned(batch: Iterable[Recorded[Fact]]) -> list[AllocationId]:
    """Allocations with facts of their own in the batch, each once, in the log's order."""
    found = (each.fact.allocation_id for each in batch if isinstance(each.fact, AllocationFact))
    return list(dict.fromkeys(found))


def _row(order: Order, now: datetime) -> dict[str, Any]:
    """The task of an order. Raises `OrderTooLarge`: it must not reach the sweeper, who sends for all nodes."""
    text = order.model_dump_json()
    refuse_too_large(order.order_id, text)
    return {
        "order_id": order.order_id,
        "node_id": order.node_id,
        "slot_id": order.slot_id,
        "allocation_id": order.allocation_id,
        "kind": order.body.kind,
        "epoch": order.token.epoch,
        "position": order.token.position,
        "order": text,
        "state": "due",
        "due_at": now,
        "created_at": now,
    }


async def _write(conn: AsyncConnection, row: dict[str, Any]) -> None:
    """One row an order, however often it is derived; what the slot was told before is superseded."""
    task = work.task
    older = sa.tuple_(task.c.epoch, task.c.position) < sa.tuple_(
        sa.literal(row["epoch"]), sa.literal(row["position"])
    )
    await conn.execute(
        sa.update(task)
        .where(task.c.slot_id == row["slot_id"], task.c.state.in_(("due", "sent")), older)
        .values(state="superseded", ended_at=row["created_at"])
    )
    await conn.execute(insert(task).values(row).on_conflict_do_nothing(index_elements=["order_id"]))


async def _hold_timer(conn: AsyncConnection, allocation: AllocationId) -> None:
    mine = work.timer.c.allocation_id == allocation
    await conn.execute(sa.select(work.timer.c.due_at).where(mine).with_for_update())


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
    await _set_timer(conn, allocation, now + LOOK_AGAIN)


async def _unpark(conn: AsyncConnection, found: Sequence[AllocationId]) -> None:
    if found:
        await conn.execute(sa.delete(work.parked).where(work.parked.c.allocation_id.in_(found)))


async def overdue_timers(conn: AsyncConnection, now: datetime, limit: int) -> list[AllocationId]:
    """Allocations whose moment has come, oldest first."""
    query = (
        sa.select(work.timer.c.allocation_id)
        .where(work.timer.c.due_at <= now)
        .order_by(work.timer.c.due_at)
        .limit(limit)
    )
    return [AllocationId(found) for found in await conn.scalars(query)]
