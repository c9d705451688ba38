"""What was sent is looked for and not sent again, unless it is gone or its copy grows old (TSK-6, P7)."""

from datetime import timedelta
from uuid import UUID

import redis

from control_plane.sweeper import COPY, Sweeper
from control_plane.work import RESEND
from tasks.scripts import WORKER_TIMEOUT
from tests.dispatch.given import Given, a_task

MESSAGES, HELD, WORKERS = "ctl:n1:slices.messages", "ctl:n1:slices.held", "ctl:n1:workers"


def _copy(admin: redis.Redis, order: UUID) -> object:
    return admin.hget(MESSAGES, str(order))


async def _looked_at_again(sweeper: Sweeper, given: Given) -> None:
    given.overdue()
    assert await sweeper.send_due() == 1


def _taken_by(admin: redis.Redis, order: UUID, *, silent_seconds: float = 0.0) -> None:
    """A worker fetched the order, and was heard of so long ago."""
    seconds, micros = admin.time()
    admin.lpop("ctl:n1:slices")
    admin.hset(HELD, str(order), "worker")
    admin.zadd(WORKERS, {"worker": seconds * 1000 + micros // 1000 - silent_seconds * 1000})


def _pause(given: Given) -> timedelta:
    [(pause,)] = given.rows("select due_at - clock_timestamp() from work.task")
    assert isinstance(pause, timedelta)
    return pause


async def test_an_order_that_waits_is_not_signed_anew_at_each_look(
    sweeper: Sweeper, given: Given, admin: redis.Redis
) -> None:
    [order] = await given.tasks(a_task("n1"))
    await sweeper.send_due()
    copy = _copy(admin, order)
    await _looked_at_again(sweeper, given)
    assert _copy(admin, order) == copy


async def test_a_copy_that_waited_for_half_its_time_is_replaced(
    sweeper: Sweeper, given: Given, admin: redis.Redis
) -> None:
    [order] = await given.tasks(a_task("n1"))
    await sweeper.send_due()
    copy = _copy(admin, order)
    given.rows("update work.task set sent_at = sent_at - %(age)s returning 1", age=COPY)
    await _looked_at_again(sweeper, given)
    assert _copy(admin, order) not in {copy, None}
    assert given.rows("select sends, sent_at > clock_timestamp() - %(age)s from work.task", age=COPY) == [
        (1, True)
    ]


async def test_an_order_that_redis_lost_is_sent_again(
    sweeper: Sweeper, given: Given, admin: redis.Redis
) -> None:
    [order] = await given.tasks(a_task("n1"))
    await sweeper.send_due()
    admin.delete(MESSAGES, "ctl:n1:slices")
    await _looked_at_again(sweeper, given)
    assert _copy(admin, order) is not None
    assert given.rows("select sends from work.task") == [(2,)]


async def test_an_order_whose_worker_falls_silent_is_looked_at_when_it_counts_as_dead(
    sweeper: Sweeper, given: Given, admin: redis.Redis
) -> None:
    [order] = await given.tasks(a_task("n1"))
    await sweeper.send_due()
    _taken_by(admin, order, silent_seconds=WORKER_TIMEOUT - 3)
    await _looked_at_again(sweeper, given)
    assert _pause(given) < timedelta(seconds=3.1) < RESEND


async def test_an_order_with_a_dead_worker_goes_to_the_head_of_the_queue(
    sweeper: Sweeper, given: Given, admin: redis.Redis
) -> None:
    [order] = await given.tasks(a_task("n1"))
    await sweeper.send_due()
    _taken_by(admin, order, silent_seconds=WORKER_TIMEOUT + 1)
    await _looked_at_again(sweeper, given)
    assert admin.lrange("ctl:n1:slices", 0, -1) == [str(order)]
    assert admin.hlen(HELD) == 0
