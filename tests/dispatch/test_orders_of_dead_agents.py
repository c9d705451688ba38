"""Tests of orders that a dead agent had in flight: such an order is withdrawn from its node's queue if the next agent
has already executed it.
"""

from uuid import UUID
from zlib import crc32

import pytest
import redis

from control_plane.dispatcher.task_sender import TIDY_ROUND, TaskSender
from tasks.scripts import WORKER_TIMEOUT
from tests.dispatch.given import Given, a_task

DIFFERENT_TURN = crc32(b"n1") + 1


@pytest.fixture
async def held(task_sender: TaskSender, given: Given, admin: redis.Redis) -> UUID:
    """Id of a finished order that Redis still lists as in flight at a dead worker of the node n1."""
    [order] = await given.tasks(a_task("n1"))
    given.heartbeat("n1")
    given.rows(
        """insert into read.node
          (node_id, version, state, subnet, l2_domain, token_sha256, token_expires_at, key_thumbprint)
        values ('n1', 1, 'enrolled', '', '', '', clock_timestamp(), 'some key') returning 1"""
    )
    await task_sender.send_due()
    admin.delete("ctl:n1:slices")
    admin.hset("ctl:n1:slices.held", str(order), "a dead worker")
    given.end(order)
    return order


def start_agent_session(given: Given, task_sender: TaskSender, *, seconds_ago: float) -> None:
    """Record that the newest agent of the node began its session the given number of seconds ago."""
    given.rows(
        """insert into work.node_session
          (node_id, number, key_thumbprint, credential_sha256, queue_password_sha256, expires_at)
        values ('n1', 2, 'some key', '', '', clock_timestamp() + %(lifetime)s - make_interval(secs => %(ago)s))
        returning 1""",
        lifetime=task_sender.session_lifetime,
        ago=seconds_ago,
    )


async def test_order_held_by_the_previous_agent_is_withdrawn_when_that_agent_counts_as_dead(
    task_sender: TaskSender, given: Given, admin: redis.Redis, held: UUID
) -> None:
    start_agent_session(given, task_sender, seconds_ago=WORKER_TIMEOUT + 1)
    await task_sender.withdraw_stranded(DIFFERENT_TURN)
    assert admin.keys("ctl:n1:*") == []


async def test_orders_of_dead_agents_on_a_node_with_a_long_running_agent_are_withdrawn_in_one_of_twelve_runs(
    task_sender: TaskSender, given: Given, admin: redis.Redis, held: UUID
) -> None:
    start_agent_session(given, task_sender, seconds_ago=100)
    await task_sender.withdraw_stranded(DIFFERENT_TURN)
    assert admin.hkeys("ctl:n1:slices.held") == [str(held)]
    await task_sender.withdraw_stranded(DIFFERENT_TURN - 1 + TIDY_ROUND)
    assert admin.keys("ctl:n1:*") == []


async def test_worker_names_of_repeatedly_killed_agents_are_removed_from_redis(
    task_sender: TaskSender, given: Given, admin: redis.Redis, held: UUID
) -> None:
    admin.zadd("ctl:n1:workers", {f"dead-{number}": number for number in range(5)})
    for turn in range(TIDY_ROUND):
        await task_sender.withdraw_stranded(turn)
    assert admin.keys("ctl:n1:*") == []
