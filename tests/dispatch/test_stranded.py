"""What an agent had in hand when it died is gone from its node's queue soon after, if the next one did it meanwhile."""

from uuid import UUID
from zlib import crc32

import pytest
import redis

from control_plane.sweeper import TIDY_ROUND, Sweeper
from tasks.scripts import WORKER_TIMEOUT
from tests.dispatch.given import Given, a_task

NOT_ITS_TURN = crc32(b"n1") + 1


@pytest.fixture
async def held(sweeper: Sweeper, given: Given, admin: redis.Redis) -> UUID:
    """An order that was done, and that a dead worker of n1 still holds."""
    [order] = await given.tasks(a_task("n1"))
    given.heard("n1")
    given.rows(
        """insert into read.node
          (node_id, version, state, subnet, l2_domain, token_sha256, token_expires_at, key_thumbprint)
        values ('n1', 1, 'enrolled', '', '', '', clock_timestamp(), 'some key') returning 1"""
    )
    await sweeper.send_due()
    admin.delete("ctl:n1:slices")
    admin.hset("ctl:n1:slices.held", str(order), "a dead worker")
    given.end(order)
    return order


def came_up(given: Given, sweeper: Sweeper, *, seconds_ago: float) -> None:
    """The node's newest agent began its session then."""
    given.rows(
        """insert into work.node_session
          (node_id, number, key_thumbprint, credential_sha256, queue_password_sha256, expires_at)
        values ('n1', 2, 'some key', '', '', clock_timestamp() + %(lifetime)s - make_interval(secs => %(ago)s))
        returning 1""",
        lifetime=sweeper.session_lifetime,
        ago=seconds_ago,
    )


async def test_what_the_agent_before_held_is_taken_back_as_soon_as_that_one_is_taken_for_dead(
    sweeper: Sweeper, given: Given, admin: redis.Redis, held: UUID
) -> None:
    came_up(given, sweeper, seconds_ago=WORKER_TIMEOUT + 1)
    await sweeper.withdraw_stranded(NOT_ITS_TURN)
    assert admin.keys("ctl:n1:*") == []


async def test_a_node_whose_agent_has_been_up_for_long_is_asked_at_its_turn_alone(
    sweeper: Sweeper, given: Given, admin: redis.Redis, held: UUID
) -> None:
    came_up(given, sweeper, seconds_ago=100)
    await sweeper.withdraw_stranded(NOT_ITS_TURN)
    assert admin.hkeys("ctl:n1:slices.held") == [str(held)]
    await sweeper.withdraw_stranded(NOT_ITS_TURN - 1 + TIDY_ROUND)
    assert admin.keys("ctl:n1:*") == []


async def test_an_agent_that_dies_again_and_again_leaves_no_workers_name_behind(
    sweeper: Sweeper, given: Given, admin: redis.Redis, held: UUID
) -> None:
    admin.zadd("ctl:n1:workers", {f"dead-{number}": number for number in range(5)})
    for turn in range(TIDY_ROUND):
        await sweeper.withdraw_stranded(turn)
    assert admin.keys("ctl:n1:*") == []
