"""Tests of tasks with the state `sent` that are not yet in a queue: the table `work.unsent` lists such a task, and the
API shows it as due.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

import pytest
import redis

from control_plane.api.filters.tasks import WantedTasks
from control_plane.api.views import task_views
from control_plane.dispatcher.task_sender import TaskSender
from control_plane.queues.relay import Outcome, Outgoing, Rejected, Relay
from control_plane.wiring import Plane
from control_plane.work import task_rows
from events.ledger.connection import ledger_connection
from events.values import NodeId, new_uuid
from tests.dispatch.given import Given, a_task


async def _listed(made: Plane, *states: str) -> list[UUID]:
    filters = WantedTasks(None, None, None, states, ())
    async with made.engine.connect() as conn:
        query = task_views.ROWS.where(*await filters.conditions(conn))
        return [row.order_id for row in await conn.execute(query)]


async def test_task_that_is_not_sent_yet_is_shown_as_due_by_the_api(made: Plane, given: Given) -> None:
    [order] = await given.tasks(a_task("n1"))
    async with made.engine.connect() as conn:
        row = await task_views.one(conn, order, None)
    assert row is not None
    assert (row.state, row.sends, row.sent_at) == ("due", 0, None)
    assert (await _listed(made, "due"), await _listed(made, "sent")) == ([order], [])


async def test_task_that_was_sent_is_shown_as_sent_by_the_api(
    made: Plane, given: Given, task_sender: TaskSender
) -> None:
    [order] = await given.tasks(a_task("n1"))
    await task_sender.send_due()
    async with made.engine.connect() as conn:
        row = await task_views.one(conn, order, None)
    assert row is not None
    assert (row.state, row.sends, row.sent_at is not None) == ("sent", 1, True)
    assert (await _listed(made, "due"), await _listed(made, "sent")) == ([], [order])


async def test_tasks_are_sent_in_the_sequence_in_which_their_rows_were_written(
    given: Given, task_sender: TaskSender, admin: redis.Redis
) -> None:
    orders = [order for _ in range(5) for order in await given.tasks(a_task("n1"))]
    await task_sender.send_due()
    assert admin.lrange("ctl:n1:slices", 0, -1) == [str(order) for order in orders]


async def test_task_finished_before_first_send_is_never_sent(
    given: Given, task_sender: TaskSender, admin: redis.Redis
) -> None:
    finished, other = await given.tasks(a_task("n1"), a_task("n1"))
    given.end(finished)
    assert await task_sender.send_due() == 1
    assert admin.lrange("ctl:n1:slices", 0, -1) == [str(other)]
    assert given.rows("select 1 from work.unsent") == []


class _EndedMeanwhile(Relay):
    """Relay (client of the task queues) that rejects every task, and first records the task as ended."""

    given: Given

    async def enqueue_many(self, orders: Sequence[Outgoing]) -> tuple[Outcome, ...]:
        self.given.end(*(each.order_id for each in orders))
        return tuple(Rejected("rejected by the test") for _ in orders)


async def test_task_that_ends_while_it_is_sent_stays_done(
    made: Plane, given: Given, task_sender: TaskSender
) -> None:
    relay = _EndedMeanwhile(made.redis)
    relay.given = given
    await given.tasks(a_task("n1"))
    assert await replace(task_sender, relay=relay).send_due() == 1
    assert given.rows("select state from work.task") == [("done",)]


@pytest.mark.parametrize(("commits", "sends"), [(True, 1), (False, 0)], ids=["sent", "not_sent"])
async def test_cancellation_of_a_task_waits_for_the_transaction_that_sends_the_task(
    made: Plane, given: Given, *, commits: bool, sends: int
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
        await (sender.commit() if commits else sender.rollback())
        newest = await stopped
    assert newest is not None
    assert (newest.operation_id, newest.node_id, newest.sends) == (operation.order_id, NodeId("n1"), sends)
