"""A task's row says what became of it, whatever its queue answered: it is written before anybody knows (P7)."""

from typing import Any

import pytest
import redis

from control_plane.relay import Relay
from control_plane.sweeper import BACK_OFF, Sweeper
from control_plane.wiring import Plane
from control_plane.work import RESEND
from deploy.embedded import redis as embedded
from tests.dispatch.given import Given, a_task

SENT, DUE = ("sent", 1, True), ("due", 0, False)


def _rows(given: Given) -> list[tuple[Any, ...]]:
    return given.rows("select state, sends, sent_at is not null from work.task order by state")


def _is(given: Given, condition: str, **values: object) -> list[bool]:
    return [found for (found,) in given.rows(f"select {condition} from work.task order by state", **values)]


async def test_what_a_queue_took_is_sent(sweeper: Sweeper, given: Given) -> None:
    await given.tasks(a_task("n1"), a_task("n2"))
    await sweeper.send_due()
    assert _rows(given) == [SENT, SENT]
    assert _is(given, "round(extract(epoch from due_at - sent_at)) = %(s)s", s=RESEND.total_seconds()) == [
        True,
        True,
    ]


async def test_what_a_full_queue_did_not_take_is_still_due(
    made: Plane, sweeper: Sweeper, given: Given
) -> None:
    narrow = _with(sweeper, Relay(made.redis, max_depth=1))
    await given.tasks(a_task("n1"), a_task("n1"), a_task("n2"))
    await narrow.send_due()
    assert _rows(given) == [DUE, SENT, SENT]
    assert _is(given, "due_at < clock_timestamp() + %(soon)s", soon=BACK_OFF) == [True, False, False]


async def test_what_a_spoilt_queue_did_not_take_is_still_due(
    sweeper: Sweeper, given: Given, admin: redis.Redis
) -> None:
    admin.set("ctl:n1:slices", "spoilt")
    await given.tasks(a_task("n1"), a_task("n2"))
    await sweeper.send_due()
    assert _rows(given) == [DUE, SENT]


async def test_an_order_sent_before_a_crash_is_not_counted_as_sent_twice(
    sweeper: Sweeper, given: Given, admin: redis.Redis
) -> None:
    await given.tasks(a_task("n1"))
    await sweeper.send_due()
    given.rows(
        "update work.task set state = 'due', sent_at = null, due_at = created_at, sends = 0 returning 1"
    )
    await sweeper.send_due()
    assert _rows(given) == [("sent", 1, True)]
    assert admin.llen("ctl:n1:slices") == 1


@pytest.mark.parametrize("heard", ["inf", 1e300, -1e300])
async def test_a_node_that_lies_about_its_worker_ends_no_dispatcher(
    sweeper: Sweeper, given: Given, admin: redis.Redis, *, heard: str | float
) -> None:
    [order, _other] = await given.tasks(a_task("n1"), a_task("n2"))
    admin.zadd("ctl:n1:workers", {"evil": heard})
    admin.hset("ctl:n1:slices.held", str(order), "evil")
    await sweeper.send_due()
    assert {row[0] for row in _rows(given)} == {"sent"}
    assert all(_is(given, "due_at <= clock_timestamp() + %(soon)s", soon=RESEND))


@pytest.mark.parametrize("sent_before", [True, False], ids=["resend", "first"])
async def test_a_redis_that_is_away_leaves_every_row_as_it_was(
    sweeper: Sweeper, given: Given, redis_server: embedded.RedisServer, *, sent_before: bool
) -> None:
    await given.tasks(a_task("n1"), a_task("n2"))
    if sent_before:
        await sweeper.send_due()
        given.overdue()
    before = given.rows("select * from work.task order by order_id")
    redis_server.process.kill()
    redis_server.process.wait()
    assert await sweeper.send_due() == 0
    assert given.rows("select * from work.task order by order_id") == before


def _with(sweeper: Sweeper, relay: Relay) -> Sweeper:
    return Sweeper(sweeper.engine, sweeper.redis, relay, sweeper.seal, sweeper.silent_after)
