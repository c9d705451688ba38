"""Tests of the limit of tasks in one node's queue: tasks beyond the limit wait and do not delay other nodes (TSK-5)."""

import json
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import redis

from control_plane.dispatcher import task_sender as sweeping
from control_plane.dispatcher.credit import wake_waiting
from control_plane.dispatcher.task_sender import TaskSender
from control_plane.work.tables import RESEND
from tasks.catalogue import CREDIT
from tests.dispatch.given import Given, a_task

ORDERS = CREDIT["orders"]
UNREACHABLE_AFTER = timedelta(seconds=20)
LONG_AGO = 2 * UNREACHABLE_AFTER.total_seconds()
SENT, DUE, WAITING, PARKED_UNREACHABLE = ("sent", True), ("due", True), ("due", False), ("sent", False)


async def test_node_is_sent_no_more_tasks_than_its_credit(task_sender: TaskSender, given: Given) -> None:
    await given.tasks(*(a_task("n1") for _ in range(ORDERS + 10)))
    assert await task_sender.send_due() == ORDERS
    assert given.states("n1") == {SENT: ORDERS, WAITING: 10}


async def test_new_order_waits_behind_older_orders_of_its_node_that_wait_for_credit(
    task_sender: TaskSender, given: Given
) -> None:
    first = await given.tasks(*(a_task("n1") for _ in range(ORDERS + 1)))
    await task_sender.send_due()
    given.end(*first[:5])
    await given.tasks(a_task("n1"))
    assert given.states("n1")[WAITING] == 2


async def test_end_of_tasks_makes_as_many_waiting_tasks_of_the_same_node_due(
    task_sender: TaskSender, given: Given
) -> None:
    tasks = await given.tasks(*(a_task("n1") for _ in range(ORDERS + 10)))
    await task_sender.send_due()
    assert await wake_waiting(given.made.engine, UNREACHABLE_AFTER) == 0
    given.end(*tasks[:3])
    assert await wake_waiting(given.made.engine, UNREACHABLE_AFTER) == 3
    assert await task_sender.send_due() == 3
    assert given.states("n1") == {("done", True): 3, SENT: ORDERS, WAITING: 7}


async def test_task_lane_without_credit_does_not_use_the_credit_of_other_lanes(
    task_sender: TaskSender, given: Given
) -> None:
    await given.tasks(*(a_task("n1") for _ in range(ORDERS + 1)))
    given.rows("update work.task set lane = 'operations' returning 1")
    await given.tasks(a_task("n1"))
    assert given.states("n1") == {DUE: ORDERS + 1, WAITING: 1}


async def test_backlog_of_an_unreachable_node_adds_no_work_for_tasks_of_other_nodes(
    task_sender: TaskSender, given: Given, admin: redis.Redis
) -> None:
    await given.tasks(a_task("alive"))
    baseline = _rows_read(given), await _sent(task_sender, admin)
    given.heartbeat("dead", seconds_ago=LONG_AGO)
    await given.tasks(*(a_task("dead") for _ in range(10_000)))
    await task_sender.send_due()
    given.overdue()
    await task_sender.send_due()
    given.rows("update work.task set state = 'done' where node_id = 'alive' returning 1")
    assert await wake_waiting(given.made.engine, UNREACHABLE_AFTER) == 0

    await given.tasks(a_task("alive"))
    assert (_rows_read(given), await _sent(task_sender, admin)) == baseline
    assert given.states("dead") == {PARKED_UNREACHABLE: ORDERS, WAITING: 10_000 - ORDERS}


def _rows_read(given: Given) -> float:
    """Return the number of database rows that the task sender's query for due tasks reads."""
    with psycopg.connect(given.database.admin_dsn) as conn:
        conn.execute(sweeping._SETTINGS)
        explained = f"explain (analyze, format json) {sweeping._DUE}"
        values = {
            "copy": sweeping.COPY,
            "unreachable": UNREACHABLE_AFTER,
            "resend": RESEND,
            "batch": sweeping.BATCH,
        }
        [(found,)] = conn.execute(explained, values).fetchall()
        conn.rollback()
    return _rows(json.loads(found)[0]["Plan"] if isinstance(found, str) else found[0]["Plan"])


def _rows(plan: dict[str, Any]) -> float:
    own = (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)) * plan["Actual Loops"]
    return float(own) + sum(_rows(each) for each in plan.get("Plans", ()))


async def _sent(task_sender: TaskSender, admin: redis.Redis) -> tuple[int, int]:
    """Let the task sender send due tasks. Return the number of sent tasks and the number of Redis scripts that this
    ran.
    """
    before = _scripts(admin)
    return await task_sender.send_due(), _scripts(admin) - before


def _scripts(admin: redis.Redis) -> int:
    stats = admin.info("commandstats").get("cmdstat_evalsha", {"calls": 0})
    return int(stats["calls"])


async def test_sent_tasks_of_an_unreachable_node_are_checked_once_and_again_after_its_next_heartbeat(
    task_sender: TaskSender, given: Given
) -> None:
    given.heartbeat("n1", seconds_ago=LONG_AGO)
    await given.tasks(a_task("n1"), a_task("n1"))
    assert await task_sender.send_due() == 2
    assert given.states("n1") == {SENT: 2}
    given.overdue()
    assert await task_sender.send_due() == 2
    assert given.states("n1") == {PARKED_UNREACHABLE: 2}
    assert await wake_waiting(given.made.engine, UNREACHABLE_AFTER) == 0
    given.heartbeat("n1")
    assert await wake_waiting(given.made.engine, UNREACHABLE_AFTER) == 2
    assert await task_sender.send_due() == 2
    assert given.states("n1") == {SENT: 2}


async def test_tasks_of_an_unreachable_node_are_restored_after_a_flush_of_redis(
    task_sender: TaskSender, given: Given, admin: redis.Redis
) -> None:
    given.heartbeat("n1", seconds_ago=LONG_AGO)
    [order] = await given.tasks(a_task("n1"))
    await task_sender.send_due()
    admin.flushall()
    await task_sender.restore_redis()
    assert _waiting(admin, "n1") == [order]


def _waiting(admin: redis.Redis, node: str) -> list[UUID]:
    return [UUID(str(each)) for each in admin.lrange(f"ctl:{node}:slices", 0, -1)]
