"""Tests that the row of a task states whether its node's queue accepted the task (P7). The row is marked as sent first,
and corrected if the queue rejects the task.
"""

from typing import Any

import pytest
import redis

from control_plane.dispatcher.task_sender import BACK_OFF, TaskSender
from control_plane.queues.relay import Relay
from control_plane.wiring import Plane
from control_plane.work.tables import RESEND
from deploy.embedded import redis as embedded
from tests.dispatch.given import Given, a_task

SENT, DUE = ("sent", 1, True), ("due", 0, False)


def _rows(given: Given) -> list[tuple[Any, ...]]:
    return given.rows("select state, sends, sent_at is not null from work.task order by state")


def _results_of(given: Given, condition: str, **values: object) -> list[bool]:
    return [found for (found,) in given.rows(f"select {condition} from work.task order by state", **values)]


async def test_task_accepted_by_its_queue_has_state_sent(task_sender: TaskSender, given: Given) -> None:
    await given.tasks(a_task("n1"), a_task("n2"))
    await task_sender.send_due()
    assert _rows(given) == [SENT, SENT]
    assert _results_of(
        given, "round(extract(epoch from due_at - sent_at)) = %(s)s", s=RESEND.total_seconds()
    ) == [
        True,
        True,
    ]


async def test_task_rejected_by_a_full_queue_stays_due(
    made: Plane, task_sender: TaskSender, given: Given
) -> None:
    narrow = _with_relay(task_sender, Relay(made.redis, max_depth=1))
    await given.tasks(a_task("n1"), a_task("n1"), a_task("n2"))
    await narrow.send_due()
    assert _rows(given) == [DUE, SENT, SENT]
    assert _results_of(given, "due_at < clock_timestamp() + %(soon)s", soon=BACK_OFF) == [True, False, False]


async def test_task_rejected_by_a_corrupt_queue_stays_due(
    task_sender: TaskSender, given: Given, admin: redis.Redis
) -> None:
    admin.set("ctl:n1:slices", "corrupt")
    await given.tasks(a_task("n1"), a_task("n2"))
    await task_sender.send_due()
    assert _rows(given) == [DUE, SENT]


async def test_order_enqueued_before_the_dispatcher_crashed_is_in_the_task_queue_once_after_it_is_sent_again(
    task_sender: TaskSender, given: Given, admin: redis.Redis
) -> None:
    await given.tasks(a_task("n1"))
    await task_sender.send_due()
    given.rows(
        "update work.task set state = 'due', sent_at = null, due_at = created_at, sends = 0 returning 1"
    )
    await task_sender.send_due()
    assert _rows(given) == [("sent", 1, True)]
    assert admin.llen("ctl:n1:slices") == 1


@pytest.mark.parametrize("score", ["inf", 1e300, -1e300])
async def test_invalid_worker_heartbeat_written_by_a_node_does_not_stop_the_dispatcher(
    task_sender: TaskSender, given: Given, admin: redis.Redis, *, score: str | float
) -> None:
    [order, _other] = await given.tasks(a_task("n1"), a_task("n2"))
    admin.zadd("ctl:n1:workers", {"evil": score})
    admin.hset("ctl:n1:slices.held", str(order), "evil")
    await task_sender.send_due()
    assert {row[0] for row in _rows(given)} == {"sent"}
    assert all(_results_of(given, "due_at <= clock_timestamp() + %(soon)s", soon=RESEND))


@pytest.mark.parametrize("sent_before", [True, False], ids=["resend", "first"])
async def test_unreachable_redis_leaves_every_task_row_unchanged(
    task_sender: TaskSender, given: Given, redis_server: embedded.RedisServer, *, sent_before: bool
) -> None:
    await given.tasks(a_task("n1"), a_task("n2"))
    if sent_before:
        await task_sender.send_due()
        given.overdue()
    before = given.rows("select * from work.task order by order_id")
    redis_server.process.kill()
    redis_server.process.wait()
    assert await task_sender.send_due() == 0
    assert given.rows("select * from work.task order by order_id") == before


def _with_relay(task_sender: TaskSender, relay: Relay) -> TaskSender:
    return TaskSender(
        task_sender.engine, task_sender.redis, relay, task_sender.seal, task_sender.unreachable_after
    )
