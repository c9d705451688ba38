"""A node gets so many tasks at a time, and what it cannot take is in nobody's way (TSK-5)."""

import json
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import redis

from control_plane import sweeper as sweeping
from control_plane.credit import wake_waiting
from control_plane.sweeper import Sweeper
from control_plane.work import RESEND
from tasks.catalogue import CREDIT
from tests.dispatch.given import Given, a_task

ORDERS = CREDIT["orders"]
SILENT_AFTER = timedelta(seconds=20)
LONG_AGO = 2 * SILENT_AFTER.total_seconds()
SENT, DUE, WAITS, LIES_SILENT = ("sent", True), ("due", True), ("due", False), ("sent", False)


async def test_a_node_is_sent_no_more_than_its_credit(sweeper: Sweeper, given: Given) -> None:
    await given.tasks(*(a_task("n1") for _ in range(ORDERS + 10)))
    assert await sweeper.send_due() == ORDERS
    assert given.states("n1") == {SENT: ORDERS, WAITS: 10}


async def test_an_order_behind_others_that_wait_waits_too(sweeper: Sweeper, given: Given) -> None:
    first = await given.tasks(*(a_task("n1") for _ in range(ORDERS + 1)))
    await sweeper.send_due()
    given.end(*first[:5])
    await given.tasks(a_task("n1"))
    assert given.states("n1")[WAITS] == 2


async def test_as_many_go_on_as_tasks_came_to_their_end(sweeper: Sweeper, given: Given) -> None:
    tasks = await given.tasks(*(a_task("n1") for _ in range(ORDERS + 10)))
    await sweeper.send_due()
    assert await wake_waiting(given.made.engine, SILENT_AFTER) == 0
    given.end(*tasks[:3])
    assert await wake_waiting(given.made.engine, SILENT_AFTER) == 3
    assert await sweeper.send_due() == 3
    assert given.states("n1") == {("done", True): 3, SENT: ORDERS, WAITS: 7}


async def test_the_credit_of_other_lanes_is_left_alone(sweeper: Sweeper, given: Given) -> None:
    await given.tasks(*(a_task("n1") for _ in range(ORDERS + 1)))
    given.rows("update work.task set lane = 'operations' returning 1")
    await given.tasks(a_task("n1"))
    assert given.states("n1") == {DUE: ORDERS + 1, WAITS: 1}


async def test_a_dead_nodes_backlog_costs_the_others_nothing(
    sweeper: Sweeper, given: Given, admin: redis.Redis
) -> None:
    await given.tasks(a_task("alive"))
    without = _looked_at(given), await _sent(sweeper, admin)
    given.heard("dead", seconds_ago=LONG_AGO)
    await given.tasks(*(a_task("dead") for _ in range(10_000)))
    await sweeper.send_due()
    given.overdue()
    await sweeper.send_due()
    given.rows("update work.task set state = 'done' where node_id = 'alive' returning 1")
    assert await wake_waiting(given.made.engine, SILENT_AFTER) == 0

    await given.tasks(a_task("alive"))
    assert (_looked_at(given), await _sent(sweeper, admin)) == without
    assert given.states("dead") == {LIES_SILENT: ORDERS, WAITS: 10_000 - ORDERS}


def _looked_at(given: Given) -> float:
    """How many rows the sweeper's look reads and throws away or keeps."""
    with psycopg.connect(given.database.admin_dsn) as conn:
        conn.execute(sweeping._SETTINGS)
        explained = f"explain (analyze, format json) {sweeping._DUE}"
        values = {
            "copy": sweeping.COPY,
            "silent": SILENT_AFTER,
            "resend": RESEND,
            "batch": sweeping.BATCH,
        }
        [(found,)] = conn.execute(explained, values).fetchall()
        conn.rollback()
    return _rows(json.loads(found)[0]["Plan"] if isinstance(found, str) else found[0]["Plan"])


def _rows(plan: dict[str, Any]) -> float:
    own = (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)) * plan["Actual Loops"]
    return float(own) + sum(_rows(each) for each in plan.get("Plans", ()))


async def _sent(sweeper: Sweeper, admin: redis.Redis) -> tuple[int, int]:
    """How many tasks a sweep sent, and how many scripts it ran for them."""
    before = _scripts(admin)
    return await sweeper.send_due(), _scripts(admin) - before


def _scripts(admin: redis.Redis) -> int:
    stats = admin.info("commandstats").get("cmdstat_evalsha", {"calls": 0})
    return int(stats["calls"])


async def test_a_silent_nodes_tasks_are_looked_at_once_and_again_when_it_is_heard(
    sweeper: Sweeper, given: Given
) -> None:
    given.heard("n1", seconds_ago=LONG_AGO)
    await given.tasks(a_task("n1"), a_task("n1"))
    assert await sweeper.send_due() == 2
    assert given.states("n1") == {SENT: 2}
    given.overdue()
    assert await sweeper.send_due() == 2
    assert given.states("n1") == {LIES_SILENT: 2}
    assert await wake_waiting(given.made.engine, SILENT_AFTER) == 0
    given.heard("n1")
    assert await wake_waiting(given.made.engine, SILENT_AFTER) == 2
    assert await sweeper.send_due() == 2
    assert given.states("n1") == {SENT: 2}


async def test_a_flush_brings_back_what_lay_in_a_silent_nodes_queue(
    sweeper: Sweeper, given: Given, admin: redis.Redis
) -> None:
    given.heard("n1", seconds_ago=LONG_AGO)
    [order] = await given.tasks(a_task("n1"))
    await sweeper.send_due()
    admin.flushall()
    await sweeper.restore_redis()
    assert _waiting(admin, "n1") == [order]


def _waiting(admin: redis.Redis, node: str) -> list[UUID]:
    return [UUID(str(each)) for each in admin.lrange(f"ctl:{node}:slices", 0, -1)]
