"""One script of a node reads a bounded amount, whatever the node wrote under its keys (P20)."""

from typing import Any

import pytest
import redis
from redis.asyncio import Redis

from control_plane.relay import Enqueued, Relay, Withdrawal
from events.values import NodeId
from tasks.broker import QueueAddress
from tasks.scripts import (
    BEAT,
    FETCH,
    LARGEST_MESSAGE,
    LEAVE,
    LONGEST_REPLY,
    MOST_LOOKS,
    PUT_BACK,
    REPLY_BYTES,
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


def run(agent: redis.Redis, script: Script, *said: str | int) -> Any:
    return agent.evalsha(script.sha, 5, *KEYS.all(), *said)


def calls(admin: redis.Redis) -> int:
    """Commands that scripts and clients ran since the counters were set back."""
    said = admin.info("commandstats")
    return sum(int(stats["calls"]) for name, stats in said.items() if name.startswith("cmdstat_"))


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (FETCH, ("greedy", MANY)),
        (SETTLE, ("greedy", "no order")),
        (PUT_BACK, ("greedy", "no order")),
        (BEAT, ("greedy",)),
        (LEAVE, ("greedy",)),
    ],
    ids=lambda each: each.name if isinstance(each, Script) else "",
)
def test_a_script_runs_as_few_commands_on_full_keys_as_on_any(
    agent: redis.Redis, admin: redis.Redis, script: Script, said: tuple[str | int, ...]
) -> None:
    names = [f"junk-{number}" for number in range(MANY)]
    admin.rpush(KEYS.waiting, *names)
    admin.hset(KEYS.held, mapping=dict.fromkeys(names, "greedy"))
    admin.hset(KEYS.deliveries, mapping={**dict.fromkeys(names, "1"), "reply:greedy": "x " * LONGEST_REPLY})
    admin.zadd(KEYS.workers, dict.fromkeys(names, 1))
    admin.config_resetstat()
    run(agent, script, *said)
    # What a fetch does with each id that it looks at is three commands.
    assert calls(admin) <= 3 * MOST_LOOKS + 20


async def test_orders_behind_ids_that_are_left_over_arrive(
    agent: redis.Redis, admin: redis.Redis, relay: Relay
) -> None:
    admin.rpush(KEYS.waiting, *[f"left-over-{number}" for number in range(3 * MOST_LOOKS)])
    [order] = order_ids(1)
    assert isinstance(await relay.enqueue(LAB_A, order, message(order)), Enqueued)
    fetched = [run(agent, FETCH, "worker", 4) for _ in range(4)]
    assert [len(each) for each in fetched] == [0, 0, 0, 1]
    assert admin.llen(KEYS.waiting) == 0


async def test_a_reply_holds_orders_up_to_a_size_and_the_next_one_the_others(
    agent: redis.Redis, control: Redis
) -> None:
    relay, ids = Relay(control), order_ids(24)
    for order in ids:
        await relay.enqueue(LAB_A, order, b"x" * 90_000)
    got = list[str]()
    sizes = list[int]()
    while given := run(agent, FETCH, "worker", 256, *got):
        got += [order.decode() for order, _, _ in given]
        sizes.append(sum(len(data) for _, data, _ in given))
    assert got == [*map(str, ids)]
    assert max(sizes) < REPLY_BYTES + LARGEST_MESSAGE
    assert len(sizes) > 1


async def test_a_reply_that_was_lost_is_given_again_and_counted_once(
    agent: redis.Redis, admin: redis.Redis, relay: Relay
) -> None:
    first, second = order_ids(2)
    await relay.enqueue(LAB_A, first, message(first))
    assert [count for _, _, count in run(agent, FETCH, "worker", 4)] == [1]
    await relay.enqueue(LAB_A, second, message(second))
    again = run(agent, FETCH, "worker", 4)
    assert [(order.decode(), count) for order, _, count in again] == [(str(first), 1), (str(second), 1)]
    # Now the reply arrived, and nothing comes twice.
    assert run(agent, FETCH, "worker", 4, str(first), str(second)) == []
    for order in (first, second):
        assert run(agent, SETTLE, "worker", str(order)) == 1
    assert admin.keys("ctl:lab-a:*") == [KEYS.workers]


async def test_an_order_that_is_settled_without_its_hold_does_not_come_again(
    agent: redis.Redis, admin: redis.Redis, relay: Relay
) -> None:
    """Redis lost the hold while the order was carried out, and it was queued again meanwhile."""
    [order] = order_ids(1)
    await relay.enqueue(LAB_A, order, message(order))
    assert run(agent, SETTLE, "worker", str(order)) == 1
    assert admin.lrange(KEYS.waiting, 0, -1) == [str(order)]
    assert run(agent, FETCH, "worker", 4) == []
    assert admin.keys("ctl:lab-a:*") == [KEYS.workers]


async def test_an_order_is_taken_back_from_a_list_that_its_node_made_long(
    agent: redis.Redis, admin: redis.Redis, relay: Relay
) -> None:
    [order] = order_ids(1)
    await relay.enqueue(LAB_A, order, message(order))
    agent.lpush(KEYS.waiting, *["junk"] * 2000)
    assert await relay.withdraw(LAB_A, order) is Withdrawal.WITHDRAWN
    while admin.llen(KEYS.waiting):
        assert run(agent, FETCH, "worker", 4) == []


async def test_the_last_reply_of_a_worker_that_died_is_forgotten(
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
