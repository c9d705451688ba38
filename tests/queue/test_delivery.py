"""Tests of queue delivery: each order reaches its handler immediately and once. The length of a queue and the number of
orders in flight are limited, and an order that no handler can process becomes a dead letter.
"""

import asyncio
import threading
import time
from collections.abc import Callable

import pytest
import redis
from redis.asyncio import Redis

from control_plane.queues.relay import AlreadyQueued, Enqueued, Outgoing, QueueFull, Relay
from events.values import NodeId
from node_agent.transport.broker import Failed, NodeCannotEnqueue, QueueAddress, Unreadable
from tasks.scripts import QueueKeys
from tests.queue.conftest import login, start_session
from tests.queue.node import Node, eventually, message, order_ids, settled
from tests.servers.redis import Depth, queue_depth

LAB_A = NodeId("lab-a")
KEYS = QueueKeys.of("ctl:lab-a")


async def test_order_handler_receives_the_exact_bytes_of_an_order(node: Node, relay: Relay) -> None:
    [order_id] = order_ids(1)
    assert await relay.enqueue(LAB_A, order_id, message(order_id, '{"é": 1.0,  "b":[]}')) == Enqueued(1)
    assert node.next_order() == '{"é": 1.0,  "b":[]}'


async def test_idle_node_begins_an_order_within_50_milliseconds(
    node: Node, relay: Relay, record_property: Callable[[str, object], None]
) -> None:
    latencies = []
    for order_id in order_ids(200):
        sent = time.perf_counter()
        await relay.enqueue(LAB_A, order_id, message(order_id))
        latencies.append((node.next_begin() - sent) * 1000)
    latencies.sort()
    record_property("idle wake-up, ms", {"p50": latencies[100], "p99": latencies[198]})
    assert latencies[100] < 50


async def test_finished_order_leaves_only_the_list_of_workers_of_its_node_in_redis(
    node: Node, relay: Relay, admin: redis.Redis
) -> None:
    [order_id] = order_ids(1)
    await relay.enqueue(LAB_A, order_id, message(order_id))
    node.next_order()
    eventually(lambda: admin.keys("ctl:*") == [KEYS.workers])
    node.stop()
    assert admin.keys("ctl:*") == []


async def test_order_sent_twice_while_it_waits_runs_once_with_the_newer_bytes(
    lab_a: QueueAddress, control: Redis, relay: Relay, start_node: Callable[..., Node]
) -> None:
    [order_id] = order_ids(1)
    await relay.enqueue(LAB_A, order_id, message(order_id, "older"))
    assert await relay.enqueue(LAB_A, order_id, message(order_id, "newer")) == AlreadyQueued(None)
    node = start_node()
    assert node.next_order() == "newer"
    await settled(control, LAB_A)
    assert node.done == 1


async def test_order_sent_again_while_it_runs_is_not_queued_again(node: Node, relay: Relay) -> None:
    first, second = order_ids(2)
    node.gate.clear()
    await relay.enqueue(LAB_A, first, message(first, "first"))
    assert node.next_order() == "first"
    again = await relay.enqueue(LAB_A, first, message(first, "first"))
    assert isinstance(again, AlreadyQueued)
    assert again.worker is not None
    node.gate.set()
    await relay.enqueue(LAB_A, second, message(second, "second"))
    assert node.next_order() == "second"


async def test_order_sent_by_ten_concurrent_senders_runs_once(
    node: Node, control: Redis, relay: Relay
) -> None:
    [order_id] = order_ids(1)
    node.gate.clear()
    senders = [Relay(control) for _ in range(10)]
    outcomes = await asyncio.gather(*(one.enqueue(LAB_A, order_id, message(order_id)) for one in senders))
    assert sum(isinstance(outcome, Enqueued) for outcome in outcomes) == 1
    node.gate.set()
    await settled(control, LAB_A)
    assert node.done == 1


async def test_orders_run_in_the_sequence_in_which_they_were_sent(
    relay: Relay, lab_a: QueueAddress, start_node: Callable[..., Node]
) -> None:
    ids = order_ids(8)
    await relay.enqueue_many(
        [Outgoing(LAB_A, order_id, message(order_id, str(order_id))) for order_id in ids]
    )
    node = start_node(prefetch=1)
    assert [node.next_order() for _ in ids] == [str(order_id) for order_id in ids]


async def test_full_queue_of_a_node_rejects_orders_and_does_not_affect_another_node(
    relay: Relay, control: Redis, lab_a: QueueAddress
) -> None:
    await start_session(control, login("lab-b"))
    ids = order_ids(9)
    outcomes = await relay.enqueue_many([Outgoing(LAB_A, order_id, message(order_id)) for order_id in ids])
    assert outcomes[:8] == tuple(Enqueued(depth) for depth in range(1, 9))
    assert outcomes[8] == QueueFull(8)
    assert await relay.enqueue(LAB_A, ids[0], message(ids[0])) == AlreadyQueued(None)
    assert await relay.enqueue(NodeId("lab-b"), ids[8], message(ids[8])) == Enqueued(1)


async def test_node_has_at_most_its_prefetch_count_of_orders_in_flight(
    control: Redis, node: Node, relay: Relay
) -> None:
    node.gate.clear()
    ids = order_ids(5)
    await relay.enqueue_many([Outgoing(LAB_A, order_id, message(order_id)) for order_id in ids])
    node.next_order()
    node.next_order()
    assert await queue_depth(control, LAB_A) == Depth(waiting=3, in_flight=2)
    node.gate.set()
    eventually(lambda: node.done == 5)


async def test_order_with_a_failing_handler_becomes_a_dead_letter_and_leaves_the_queue(
    control: Redis, node: Node, relay: Relay
) -> None:
    [order_id] = order_ids(1)
    await relay.enqueue(LAB_A, order_id, message(order_id, "order", actor="slice.fail"))
    failed = node.next_dead_letter()
    assert isinstance(failed, Failed)
    assert failed.message.order_id == order_id
    assert str(failed.error) == "no such bridge: order"
    await settled(control, LAB_A)


async def test_order_without_a_handler_becomes_a_dead_letter(
    control: Redis, node: Node, relay: Relay
) -> None:
    [order_id] = order_ids(1)
    await relay.enqueue(LAB_A, order_id, message(order_id, actor="slice.unknown"))
    failed = node.next_dead_letter()
    assert isinstance(failed, Failed)
    assert failed.message.actor == "slice.unknown"
    await settled(control, LAB_A)


@pytest.mark.parametrize(
    "corrupt",
    [
        lambda _: b"\xff no json",
        lambda good: good.replace(b'"options":{}', b'"options":{"eta":1}'),
        lambda good: good.replace(b'"options":{}', b'"options":{"time_limit":1}'),
        lambda good: good.replace(b'"kwargs":{}', b'"kwargs":{"order":"x"}'),
        lambda good: good.replace(b'"queue_name":"slices"', b'"queue_name":"other"'),
        lambda good: good.replace(b'"args":["{}"]', b'"args":[]'),
    ],
    ids=["not-json", "delayed", "other-time-limit", "keyword-arguments", "other-queue", "no-order"],
)
async def test_queue_entry_that_is_not_an_order_becomes_a_dead_letter_and_the_next_order_runs(
    control: Redis, node: Node, relay: Relay, corrupt: Callable[[bytes], bytes]
) -> None:
    bad, good = order_ids(2)
    corrupted = corrupt(message(bad))
    assert corrupted != message(bad)
    await relay.enqueue(LAB_A, bad, corrupted)
    await relay.enqueue(LAB_A, good, message(good, "good"))
    unreadable = node.next_dead_letter()
    assert isinstance(unreadable, Unreadable)
    assert unreadable.key == str(bad)
    assert node.next_order() == "good"
    await settled(control, LAB_A)


async def test_order_queued_under_the_id_of_another_order_becomes_a_dead_letter(
    node: Node, relay: Relay
) -> None:
    real, other = order_ids(2)
    await relay.enqueue(LAB_A, other, message(real))
    assert isinstance(node.next_dead_letter(), Unreadable)


async def test_stopped_worker_requeues_unbegun_orders_in_their_sequence_and_without_counting_a_delivery(
    relay: Relay, admin: redis.Redis, start_node: Callable[..., Node]
) -> None:
    node = start_node(prefetch=3, threads=1)
    node.gate.clear()
    ids = order_ids(3)
    await relay.enqueue_many([Outgoing(LAB_A, order_id, message(order_id)) for order_id in ids])
    node.next_order()
    stopping = threading.Thread(target=node.worker.stop)
    stopping.start()
    eventually(node.stopping.is_set)
    node.gate.set()
    stopping.join()
    assert admin.lrange(KEYS.waiting, 0, -1) == [str(ids[1]), str(ids[2])]
    assert admin.hgetall(KEYS.deliveries) == {}
    assert node.done == 1


def test_queue_worker_without_orders_ends_within_half_a_second_of_its_stop(node: Node) -> None:
    eventually(lambda: node.worker.consumers["slices"].consumer is not None)
    began = time.perf_counter()
    node.stop()
    assert time.perf_counter() - began < 0.5


async def test_node_has_two_redis_connections(node: Node, relay: Relay, admin: redis.Redis) -> None:
    for order_id in order_ids(20):
        await relay.enqueue(LAB_A, order_id, message(order_id))
        node.next_order()
    names = [client["name"] for client in admin.client_list() if client["user"] == "node-lab-a"]
    assert sorted(names) == ["node-lab-a-commands", "node-lab-a-waiter"]


async def test_attempt_of_a_node_to_enqueue_an_order_raises_node_cannot_enqueue(node: Node) -> None:
    actor = node.broker.get_actor("slice.apply")
    with pytest.raises(NodeCannotEnqueue):
        actor.send("{}")
    with pytest.raises(NodeCannotEnqueue):
        actor.send_with_options(args=("{}",), delay=1000)
    assert node.broker.get_declared_delay_queues() == set()
