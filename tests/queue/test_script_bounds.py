"""Tests that a node's Redis scripts read a bounded amount of data, regardless of what the node wrote to its keys
(P20).
"""

from typing import Any

import pytest
import redis
from redis.asyncio import Redis

from control_plane.queues.relay import Enqueued, Relay, Withdrawal
from events.values import NodeId
from node_agent.transport.broker import QueueAddress
from tasks.scripts import (
    BEAT,
    FETCH,
    LARGEST_MESSAGE,
    LEAVE,
    LONGEST_REPLY,
    MAX_IDS_READ,
    REPLY_BYTES,
    REQUEUE,
    SETTLE,
    QueueKeys,
    Script,
)
from tests.queue.conftest import PASSWORD
from tests.queue.node import WORKER_TIMEOUT, message, order_ids

LAB_A = NodeId("lab-a")
KEYS = QueueKeys.of("ctl:lab-a")
MANY = 20_000


@pytest.fixture
def agent(lab_a: QueueAddress) -> redis.Redis:
    return redis.Redis(lab_a.host, lab_a.port, username=lab_a.username, password=PASSWORD, protocol=2)


def run(agent: redis.Redis, script: Script, *arguments: str | int) -> Any:
    return agent.evalsha(script.sha, 5, *KEYS.all(), *arguments)


def calls(admin: redis.Redis) -> int:
    """Return the number of Redis commands that scripts and clients ran since the statistics were reset."""
    statistics = admin.info("commandstats")
    return sum(int(stats["calls"]) for name, stats in statistics.items() if name.startswith("cmdstat_"))


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        (FETCH, ("greedy", MANY)),
        (SETTLE, ("greedy", "no order")),
        (REQUEUE, ("greedy", "no order")),
        (BEAT, ("greedy",)),
        (LEAVE, ("greedy",)),
    ],
    ids=lambda each: each.name if isinstance(each, Script) else "",
)
def test_queue_script_on_keys_with_20000_entries_runs_a_bounded_number_of_commands(
    agent: redis.Redis, admin: redis.Redis, script: Script, arguments: tuple[str | int, ...]
) -> None:
    names = [f"junk-{number}" for number in range(MANY)]
    admin.rpush(KEYS.waiting, *names)
    admin.hset(KEYS.held, mapping=dict.fromkeys(names, "greedy"))
    admin.hset(KEYS.deliveries, mapping={**dict.fromkeys(names, "1"), "reply:greedy": "x " * LONGEST_REPLY})
    admin.zadd(KEYS.workers, dict.fromkeys(names, 1))
    admin.config_resetstat()
    run(agent, script, *arguments)
    # A fetch runs three commands for each id that it reads.
    assert calls(admin) <= 3 * MAX_IDS_READ + 20


async def test_order_queued_behind_order_ids_without_data_is_fetched(
    agent: redis.Redis, admin: redis.Redis, relay: Relay
) -> None:
    admin.rpush(KEYS.waiting, *[f"obsolete-{number}" for number in range(3 * MAX_IDS_READ)])
    [order] = order_ids(1)
    assert isinstance(await relay.enqueue(LAB_A, order, message(order)), Enqueued)
    fetched = [run(agent, FETCH, "worker", 4) for _ in range(4)]
    assert [len(each) for each in fetched] == [0, 0, 0, 1]
    assert admin.llen(KEYS.waiting) == 0


async def test_fetch_of_many_large_orders_returns_them_in_replies_of_bounded_size(
    agent: redis.Redis, control: Redis
) -> None:
    relay, ids = Relay(control), order_ids(24)
    for order in ids:
        await relay.enqueue(LAB_A, order, b"x" * 90_000)
    got = list[str]()
    sizes = list[int]()
    while fetched := run(agent, FETCH, "worker", 256, *got):
        got += [order.decode() for order, _, _ in fetched]
        sizes.append(sum(len(data) for _, data, _ in fetched))
    assert got == [*map(str, ids)]
    assert max(sizes) < REPLY_BYTES + LARGEST_MESSAGE
    assert len(sizes) > 1


async def test_order_of_a_lost_fetch_reply_is_returned_again_and_counted_as_one_delivery(
    agent: redis.Redis, admin: redis.Redis, relay: Relay
) -> None:
    first, second = order_ids(2)
    await relay.enqueue(LAB_A, first, message(first))
    assert [count for _, _, count in run(agent, FETCH, "worker", 4)] == [1]
    await relay.enqueue(LAB_A, second, message(second))
    again = run(agent, FETCH, "worker", 4)
    assert [(order.decode(), count) for order, _, count in again] == [(str(first), 1), (str(second), 1)]
    # The worker acknowledges the reply, so that no order is returned again.
    assert run(agent, FETCH, "worker", 4, str(first), str(second)) == []
    for order in (first, second):
        assert run(agent, SETTLE, "worker", str(order)) == 1
    assert admin.keys("ctl:lab-a:*") == [KEYS.workers]


async def test_order_acknowledged_by_a_worker_that_redis_no_longer_lists_as_its_holder_is_not_fetched_again(
    agent: redis.Redis, admin: redis.Redis, relay: Relay
) -> None:
    """While the order ran, Redis lost the record that a worker holds it, and the order was enqueued again."""
    [order] = order_ids(1)
    await relay.enqueue(LAB_A, order, message(order))
    assert run(agent, SETTLE, "worker", str(order)) == 1
    assert admin.lrange(KEYS.waiting, 0, -1) == [str(order)]
    assert run(agent, FETCH, "worker", 4) == []
    assert admin.keys("ctl:lab-a:*") == [KEYS.workers]


async def test_order_is_withdrawn_from_a_queue_that_its_node_flooded(
    agent: redis.Redis, admin: redis.Redis, relay: Relay
) -> None:
    [order] = order_ids(1)
    await relay.enqueue(LAB_A, order, message(order))
    agent.lpush(KEYS.waiting, *["junk"] * 2000)
    assert await relay.withdraw(LAB_A, order) is Withdrawal.WITHDRAWN
    while admin.llen(KEYS.waiting):
        assert run(agent, FETCH, "worker", 4) == []


async def test_stored_fetch_reply_of_a_dead_worker_is_deleted_when_its_stranded_orders_are_listed(
    agent: redis.Redis, admin: redis.Redis, relay: Relay
) -> None:
    [order] = order_ids(1)
    await relay.enqueue(LAB_A, order, message(order))
    run(agent, FETCH, "worker", 4)
    assert admin.hexists(KEYS.deliveries, "reply:worker")
    long_ago = int(admin.time()[0] * 1000 - 2000 * WORKER_TIMEOUT)
    admin.zadd(KEYS.workers, {"worker": long_ago})
    assert (await relay.stranded([LAB_A])).orders == {LAB_A: (order,)}
    assert not admin.hexists(KEYS.deliveries, "reply:worker")
