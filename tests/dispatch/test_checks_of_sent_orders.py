"""Tests of the task sender's check of sent orders: it sends an order again only if Redis lost the order or the signed
copy in the queue is old (TSK-6, P7).
"""

from datetime import timedelta
from uuid import UUID

import redis

from control_plane.dispatcher.task_sender import COPY, TaskSender
from control_plane.work.tables import RESEND
from tasks.scripts import WORKER_TIMEOUT
from tests.dispatch.given import Given, a_task

MESSAGES, HELD, WORKERS = "ctl:n1:slices.messages", "ctl:n1:slices.held", "ctl:n1:workers"


def _copy(admin: redis.Redis, order: UUID) -> object:
    return admin.hget(MESSAGES, str(order))


async def _check_again(task_sender: TaskSender, given: Given) -> None:
    given.overdue()
    assert await task_sender.send_due() == 1


def _fetch(admin: redis.Redis, order: UUID, *, seconds_since_heartbeat: float = 0.0) -> None:
    """Move an order from the node's queue to a worker that had its last heartbeat the given number of seconds ago."""
    seconds, micros = admin.time()
    admin.lpop("ctl:n1:slices")
    admin.hset(HELD, str(order), "worker")
    admin.zadd(WORKERS, {"worker": seconds * 1000 + micros // 1000 - seconds_since_heartbeat * 1000})


def _pause(given: Given) -> timedelta:
    [(pause,)] = given.rows("select due_at - clock_timestamp() from work.task")
    assert isinstance(pause, timedelta)
    return pause


async def test_order_that_waits_in_its_queue_is_not_signed_again_at_each_check(
    task_sender: TaskSender, given: Given, admin: redis.Redis
) -> None:
    [order] = await given.tasks(a_task("n1"))
    await task_sender.send_due()
    copy = _copy(admin, order)
    await _check_again(task_sender, given)
    assert _copy(admin, order) == copy


async def test_signed_copy_of_a_waiting_order_is_replaced_after_half_its_lifetime(
    task_sender: TaskSender, given: Given, admin: redis.Redis
) -> None:
    [order] = await given.tasks(a_task("n1"))
    await task_sender.send_due()
    copy = _copy(admin, order)
    given.rows("update work.task set sent_at = sent_at - %(age)s returning 1", age=COPY)
    await _check_again(task_sender, given)
    assert _copy(admin, order) not in {copy, None}
    assert given.rows("select sends, sent_at > clock_timestamp() - %(age)s from work.task", age=COPY) == [
        (1, True)
    ]


async def test_order_lost_by_redis_is_sent_again(
    task_sender: TaskSender, given: Given, admin: redis.Redis
) -> None:
    [order] = await given.tasks(a_task("n1"))
    await task_sender.send_due()
    admin.delete(MESSAGES, "ctl:n1:slices")
    await _check_again(task_sender, given)
    assert _copy(admin, order) is not None
    assert given.rows("select sends from work.task") == [(2,)]


async def test_order_held_by_a_worker_without_heartbeat_is_checked_when_the_worker_times_out(
    task_sender: TaskSender, given: Given, admin: redis.Redis
) -> None:
    [order] = await given.tasks(a_task("n1"))
    await task_sender.send_due()
    _fetch(admin, order, seconds_since_heartbeat=WORKER_TIMEOUT - 3)
    await _check_again(task_sender, given)
    assert _pause(given) < timedelta(seconds=3.1) < RESEND


async def test_order_held_by_a_dead_worker_is_requeued_at_the_head_of_the_queue(
    task_sender: TaskSender, given: Given, admin: redis.Redis
) -> None:
    [order] = await given.tasks(a_task("n1"))
    await task_sender.send_due()
    _fetch(admin, order, seconds_since_heartbeat=WORKER_TIMEOUT + 1)
    await _check_again(task_sender, given)
    assert admin.lrange("ctl:n1:slices", 0, -1) == [str(order)]
    assert admin.hlen(HELD) == 0
