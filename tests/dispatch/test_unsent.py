"""A row says that its task was sent before it was; until then the task stands apart, and nobody is told otherwise."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

import pytest
import redis

from control_plane import task_rows
from control_plane.api import task_views
from control_plane.api.task_picking import WantedTasks
from control_plane.relay import NotTaken, Outcome, Outgoing, Relay
from control_plane.sweeper import Sweeper
from control_plane.wiring import Plane
from events.connection import ledger_connection
from events.values import NodeId, new_uuid
from tests.dispatch.given import Given, a_task


async def _listed(made: Plane, *states: str) -> list[UUID]:
    wanted = WantedTasks(None, None, None, states, ())
    async with made.engine.connect() as conn:
        query = task_views.ROWS.where(*await wanted.conditions(conn))
        return [row.order_id for row in await conn.execute(query)]


async def test_what_was_never_sent_is_shown_as_due(made: Plane, given: Given) -> None:
    [order] = await given.tasks(a_task("n1"))
    async with made.engine.connect() as conn:
        row = await task_views.one(conn, order)
    assert row is not None
    assert (row.state, row.sends, row.sent_at) == ("due", 0, None)
    assert (await _listed(made, "due"), await _listed(made, "sent")) == ([order], [])


async def test_what_was_sent_is_shown_as_sent(made: Plane, given: Given, sweeper: Sweeper) -> None:
    [order] = await given.tasks(a_task("n1"))
    await sweeper.send_due()
    async with made.engine.connect() as conn:
        row = await task_views.one(conn, order)
    assert row is not None
    assert (row.state, row.sends, row.sent_at is not None) == ("sent", 1, True)
    assert (await _listed(made, "due"), await _listed(made, "sent")) == ([], [order])


async def test_tasks_are_sent_in_the_order_in_which_they_were_written(
    given: Given, sweeper: Sweeper, admin: redis.Redis
) -> None:
    orders = [order for _ in range(5) for order in await given.tasks(a_task("n1"))]
    await sweeper.send_due()
    assert admin.lrange("ctl:n1:slices", 0, -1) == [str(order) for order in orders]


async def test_what_is_over_before_it_was_sent_is_not_sent(
    given: Given, sweeper: Sweeper, admin: redis.Redis
) -> None:
    over, other = await given.tasks(a_task("n1"), a_task("n1"))
    given.end(over)
    assert await sweeper.send_due() == 1
    assert admin.lrange("ctl:n1:slices", 0, -1) == [str(other)]
    assert given.rows("select 1 from work.unsent") == []


class _EndedMeanwhile(Relay):
    """Takes nothing, and what it was to take is over by then."""

    given: Given

    async def enqueue_many(self, orders: Sequence[Outgoing]) -> tuple[Outcome, ...]:
        self.given.end(*(each.order_id for each in orders))
        return tuple(NotTaken("nothing is taken") for _ in orders)


async def test_what_ends_while_it_is_sent_is_over(made: Plane, given: Given, sweeper: Sweeper) -> None:
    relay = _EndedMeanwhile(made.redis)
    relay.given = given
    await given.tasks(a_task("n1"))
    assert await replace(sweeper, relay=relay).send_due() == 1
    assert given.rows("select state from work.task") == [("done",)]


@pytest.mark.parametrize(("goes_through", "sends"), [(True, 1), (False, 0)], ids=["sent", "not_sent"])
async def test_whoever_stops_a_try_waits_for_him_who_sends_it(
    made: Plane, given: Given, *, goes_through: bool, sends: int
) -> None:
    task = new_uuid()
    operation = replace(a_task("n1"), task_id=task, attempt=1, token=None)
    await given.tasks(operation)
    async with made.engine.connect() as sending, made.engine.connect() as stopping:
        sender = await ledger_connection(sending)
        await sender.execute("delete from work.unsent")
        stopped = asyncio.create_task(task_rows.newest_try(stopping, task))
        while not given.rows("select 1 from pg_locks where not granted"):
            await asyncio.sleep(0)
        await (sender.commit() if goes_through else sender.rollback())
        newest = await stopped
    assert newest is not None
    assert (newest.operation_id, newest.node_id, newest.sends) == (operation.order_id, NodeId("n1"), sends)
