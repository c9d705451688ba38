"""Tests of queue recovery: every order arrives and none runs twice concurrently if workers die or Redis is flushed,
restarted or corrupted.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from redis.asyncio import Redis
from structlog.testing import capture_logs

from control_plane.queues import redis_nodes
from control_plane.queues.redis_nodes import Loss, RedisUnavailable
from control_plane.queues.relay import (
    AlreadyQueued,
    Enqueued,
    Outcome,
    Outgoing,
    QueueFull,
    Rejected,
    Relay,
    Stranded,
    Withdrawal,
)
from deploy.embedded import redis as embedded
from events.values import NodeId
from node_agent.runtime.timetable import Timetable
from node_agent.transport.broker import NodeBroker, Poisoned, QueueAddress
from node_agent.transport.broker.link import QueueUnavailable
from node_agent.transport.broker.queue import NodeQueue
from tasks.scripts import QueueKeys
from tests.queue.conftest import PASSWORD, address, end_session, login, start_session
from tests.queue.node import WORKER_TIMEOUT, Node, eventually, message, order_ids, requeued, settled
from tests.servers.redis import Depth, queue_depth, server_folder

LAB_A = NodeId("lab-a")
KEYS = QueueKeys.of("ctl:lab-a")


@contextmanager
def doomed_worker(queue: QueueAddress) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.queue.killed_worker",
            queue.host,
            str(queue.port),
            queue.username,
            queue.namespace,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    print(PASSWORD, file=process.stdin, flush=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


async def test_order_of_a_killed_worker_goes_to_another_worker_after_one_worker_timeout(
    lab_a: QueueAddress, control: Redis, relay: Relay, start_node: Callable[..., Node]
) -> None:
    [order_id] = order_ids(1)
    data = message(order_id, "precious")
    await relay.enqueue(LAB_A, order_id, data)
    with doomed_worker(lab_a) as worker:
        assert _first_line(worker) == "precious"
        assert isinstance(await relay.enqueue(LAB_A, order_id, data), AlreadyQueued)
    assert await requeued(relay, LAB_A, order_id, data) < WORKER_TIMEOUT + 5
    assert start_node().next_order() == "precious"
    await settled(control, LAB_A)


async def test_order_that_killed_its_workers_is_dead_lettered_as_poisoned(
    lab_a: QueueAddress, control: Redis, relay: Relay, start_node: Callable[..., Node]
) -> None:
    [order_id] = order_ids(1)
    data = message(order_id, "poison")
    await relay.enqueue(LAB_A, order_id, data)
    for _ in range(2):
        with doomed_worker(lab_a) as worker:
            assert _first_line(worker) == "poison"
        await requeued(relay, LAB_A, order_id, data)
    node = start_node(poison_after=2)
    poisoned = node.next_dead_letter()
    assert isinstance(poisoned, Poisoned)
    assert (poisoned.message.order_id, poisoned.deliveries) == (order_id, 2)
    await settled(control, LAB_A)
    assert node.begun.empty()


async def test_order_requeued_to_the_worker_that_already_holds_it_counts_as_one_delivery(
    node: Node, control: Redis, relay: Relay, admin: redis.Redis
) -> None:
    [order_id] = order_ids(1)
    node.gate.clear()
    await relay.enqueue(LAB_A, order_id, message(order_id))
    node.next_order()
    for _ in range(4):
        await requeued(Relay(control, worker_timeout=0.001), LAB_A, order_id, message(order_id))
        eventually(lambda: admin.hget(KEYS.held, str(order_id)))
    assert admin.hget(KEYS.deliveries, str(order_id)) == "1"


async def test_orders_requeued_at_shutdown_keep_their_sequence_if_only_the_first_was_passed_to_the_worker(
    lab_a: QueueAddress, relay: Relay, admin: redis.Redis
) -> None:
    ids = order_ids(3)
    await relay.enqueue_many([Outgoing(LAB_A, each, message(each)) for each in ids])
    with Timetable() as timetable:
        broker = NodeBroker(lab_a, timetable, on_dead_letter=print, prefetch=3)
        broker.declare_queue("slices")
        consumer = broker.consume("slices")
        consumed = next(consumer)
        assert consumed is not None
        consumer.requeue([consumed])
        consumer.close()
        broker.close()
    assert admin.lrange(KEYS.waiting, 0, -1) == [str(each) for each in ids]
    assert admin.hgetall(KEYS.deliveries) == {}


async def test_consumer_close_requeues_a_fetched_order_that_was_not_begun_and_leaves_a_begun_order_in_flight(
    lab_a: QueueAddress, control: Redis, relay: Relay, admin: redis.Redis
) -> None:
    first, second = order_ids(2)
    await relay.enqueue_many([Outgoing(LAB_A, each, message(each)) for each in (first, second)])
    with Timetable() as timetable:
        broker = NodeBroker(lab_a, timetable, on_dead_letter=print, prefetch=2)
        broker.declare_queue("slices")
        consumer = broker.consume("slices")
        assert next(consumer) is not None
        consumer.requeue(())
        consumer.close()
        broker.close()
    assert await queue_depth(control, LAB_A) == Depth(waiting=1, in_flight=1)
    assert admin.hget(KEYS.deliveries, str(second)) is None


async def test_worker_that_runs_a_long_order_is_not_considered_dead(
    node: Node, relay: Relay, admin: redis.Redis
) -> None:
    [order_id] = order_ids(1)
    node.gate.clear()
    await relay.enqueue(LAB_A, order_id, message(order_id))
    node.next_order()
    first = admin.zscore(KEYS.workers, _only_worker(admin))
    assert first is not None
    eventually(lambda: (admin.zscore(KEYS.workers, _only_worker(admin)) or 0) > first + 1000 * WORKER_TIMEOUT)
    assert isinstance(await relay.enqueue(LAB_A, order_id, message(order_id)), AlreadyQueued)


async def test_orders_flushed_from_redis_before_their_fetch_arrive_after_restoration(
    lab_a: QueueAddress,
    relay: Relay,
    control: Redis,
    admin: redis.Redis,
    start_node: Callable[..., Node],
) -> None:
    due = [Outgoing(LAB_A, order_id, message(order_id, str(order_id))) for order_id in order_ids(3)]
    await redis_nodes.restore(control, lambda: _users(control), _nothing_due)
    await relay.enqueue_many(due)
    assert await queue_depth(control, LAB_A) == Depth(waiting=3, in_flight=0)
    admin.flushall()
    assert await redis_nodes.inspect(control) is Loss.FLUSHED
    node = start_node()
    await redis_nodes.restore(control, lambda: _users(control), lambda: _send(relay, due))
    assert {node.next_order() for _ in due} == {str(order.order_id) for order in due}
    await settled(control, LAB_A)
    assert node.done == 3


async def test_order_running_while_redis_is_flushed_and_restored_runs_once(
    node: Node, relay: Relay, control: Redis, admin: redis.Redis
) -> None:
    running, waiting = order_ids(2)
    due = [
        Outgoing(LAB_A, running, message(running, "running")),
        Outgoing(LAB_A, waiting, message(waiting, "next")),
    ]
    node.gate.clear()
    await relay.enqueue_many(due[:1])
    assert node.next_order() == "running"
    admin.flushall()
    await redis_nodes.restore(control, lambda: _users(control), lambda: _send(relay, due))
    assert node.next_order() == "next"
    node.gate.set()
    await settled(control, LAB_A)
    assert node.done == 2
    assert node.begun.empty()


async def test_order_acknowledged_after_redis_lost_it_and_it_was_enqueued_again_does_not_run_again(
    lab_a: QueueAddress, relay: Relay, admin: redis.Redis, timetable: Timetable
) -> None:
    [order_id] = order_ids(1)
    await relay.enqueue(LAB_A, order_id, message(order_id))
    worker = NodeQueue(lab_a, timetable, worker_timeout=WORKER_TIMEOUT)
    assert len(worker.fetch(1, ())) == 1
    admin.flushall()
    await relay.enqueue(LAB_A, order_id, message(order_id))
    assert worker.settle(str(order_id))
    assert worker.fetch(1, ()) == ()
    worker.close()


async def test_waiting_worker_continues_after_redis_is_restarted_empty_and_restored(program: Path) -> None:
    with server_folder() as kept, server_folder() as fresh:
        first = embedded.start(kept, server=program)
        async with Redis.from_url(first.url) as control:
            await redis_nodes.restore(control, lambda: _users(control), _nothing_due)
        node = Node(address(first, "lab-a"))
        eventually(lambda: node.worker.consumers["slices"].consumer is not None)
        first.process.kill()
        first.process.wait()
        with embedded.running_redis(fresh, server=program, port=first.port) as second:
            async with Redis.from_url(second.url) as control:
                relay = Relay(control)
                assert await redis_nodes.inspect(control) is Loss.FLUSHED
                [order_id] = order_ids(1)
                due = [Outgoing(LAB_A, order_id, message(order_id, "due"))]
                await redis_nodes.restore(control, lambda: _users(control), lambda: _send(relay, due))
                assert await redis_nodes.inspect(control) is None
                assert node.next_order() == "due"
                await settled(control, LAB_A)
                node.stop()


async def test_redis_restarted_with_its_data_keeps_the_queue_and_is_detected_as_restarted(
    program: Path,
) -> None:
    with server_folder() as folder:
        first = embedded.start(folder, server=program)
        [order_id] = order_ids(1)
        async with Redis.from_url(first.url) as control:
            await redis_nodes.restore(control, lambda: _users(control), _nothing_due)
            await Relay(control).enqueue(LAB_A, order_id, message(order_id, "kept"))
        first.stop()
        with embedded.running_redis(folder, server=program, port=first.port) as second:
            node = Node(address(second, "lab-a"))
            async with Redis.from_url(second.url) as control:
                assert await redis_nodes.inspect(control) is Loss.RESTARTED
                await redis_nodes.restore(control, lambda: _users(control), _nothing_due)
                assert await redis_nodes.inspect(control) is None
            assert node.next_order() == "kept"
            node.stop()


async def test_interrupted_restoration_of_redis_is_detected_as_incomplete(
    control: Redis, lab_a: QueueAddress
) -> None:
    async def fails() -> None:
        raise RedisUnavailable("unreachable again")

    with pytest.raises(RedisUnavailable):
        await redis_nodes.restore(control, lambda: _users(control), fails)
    assert await redis_nodes.inspect(control) is Loss.FLUSHED


async def test_lost_redis_scripts_are_detected_and_loaded_again_by_the_next_send(
    node: Node, control: Redis, relay: Relay, admin: redis.Redis
) -> None:
    await redis_nodes.restore(control, lambda: _users(control), _nothing_due)
    admin.script_flush()
    assert await redis_nodes.inspect(control) is Loss.SCRIPTS
    [order_id] = order_ids(1)
    await relay.enqueue(LAB_A, order_id, message(order_id, "order"))
    assert node.next_order() == "order"


async def test_node_without_its_redis_user_waits_and_continues_when_the_user_exists_again(
    node: Node, control: Redis, relay: Relay
) -> None:
    await end_session(control, LAB_A)
    [order_id] = order_ids(1)
    await relay.enqueue(LAB_A, order_id, message(order_id, "order"))
    await start_session(control, login("lab-a"))
    assert node.next_order() == "order"


async def test_orders_arrive_exactly_once_while_redis_connections_are_closed_repeatedly(
    node: Node, control: Redis, admin: redis.Redis
) -> None:
    relay = Relay(control)
    ids = order_ids(200)
    for order_id in ids:
        assert isinstance(await relay.enqueue(LAB_A, order_id, message(order_id, str(order_id))), Enqueued)
        admin.client_kill_filter(user="node-lab-a", skipme=True)
    assert sorted(node.next_order() for _ in ids) == sorted(str(order_id) for order_id in ids)
    await settled(control, LAB_A)
    assert node.begun.empty()


async def test_redis_connections_closed_and_reopened_immediately_are_not_logged_as_an_outage(
    node: Node, relay: Relay, admin: redis.Redis
) -> None:
    [order_id] = order_ids(1)
    with capture_logs() as log:
        # The worker opens its connections in the background.
        eventually(lambda: admin.client_kill_filter(user="node-lab-a", skipme=True))
        await relay.enqueue(LAB_A, order_id, message(order_id, "order"))
        assert node.next_order() == "order"
    assert [each["event"] for each in log if each["event"].startswith("task_queue")] == []


async def test_redis_outage_is_logged_once_with_its_reason_and_once_when_it_ends(
    node: Node, control: Redis, relay: Relay
) -> None:
    def queue_events() -> list[str]:
        return [each["event"] for each in log if each["event"].startswith("task_queue")]

    [order_id] = order_ids(1)
    with capture_logs() as log:
        await end_session(control, LAB_A)
        eventually(queue_events)
        await start_session(control, login("lab-a"))
        await relay.enqueue(LAB_A, order_id, message(order_id, "order"))
        assert node.next_order() == "order"
        eventually(lambda: queue_events()[-1] == "task_queue_reachable")
    assert queue_events() == ["task_queue_unreachable", "task_queue_reachable"]
    assert log[0]["reason"]


def test_worker_stops_within_one_second_while_redis_is_unreachable(program: Path) -> None:
    with server_folder() as folder:
        server = embedded.start(folder, server=program)
        node = Node(address(server, "lab-a"))
        server.process.kill()
        server.process.wait()
        began = time.perf_counter()
        node.stop()
        assert time.perf_counter() - began < 1


async def test_order_of_a_lost_reply_is_returned_by_the_workers_next_fetch_without_counting_a_delivery(
    lab_a: QueueAddress, relay: Relay, timetable: Timetable
) -> None:
    lost, acknowledged = order_ids(2)
    await relay.enqueue_many(
        [Outgoing(LAB_A, order_id, message(order_id)) for order_id in (lost, acknowledged)]
    )
    worker = NodeQueue(lab_a, timetable, worker_timeout=WORKER_TIMEOUT)
    assert len(worker.fetch(2, ())) == 2
    [again] = worker.fetch(1, [str(acknowledged)])
    assert (again.order_id, again.count) == (str(lost), 1)
    worker.close()


async def test_worker_suspended_past_its_timeout_cannot_acknowledge_or_requeue_an_order_of_another_worker(
    lab_a: QueueAddress, control: Redis, relay: Relay
) -> None:
    [order_id] = order_ids(1)
    data = message(order_id)
    await relay.enqueue(LAB_A, order_id, data)
    no_beats = Timetable()
    no_beats.close()
    stopped, other = (NodeQueue(lab_a, no_beats, worker_timeout=WORKER_TIMEOUT) for _ in range(2))
    assert stopped.fetch(1, ())[0].count == 1
    await requeued(relay, LAB_A, order_id, data)
    assert other.fetch(1, ())[0].count == 2
    assert not stopped.settle(str(order_id))
    stopped.requeue([str(order_id)])
    assert await queue_depth(control, LAB_A) == Depth(waiting=0, in_flight=1)
    assert other.settle(str(order_id))
    stopped.close()
    other.close()


async def test_orders_held_by_a_dead_worker_are_listed_as_stranded_and_can_be_withdrawn(
    lab_a: QueueAddress, relay: Relay, admin: redis.Redis, timetable: Timetable
) -> None:
    held, waiting = order_ids(2)
    await relay.enqueue_many([Outgoing(LAB_A, order_id, message(order_id)) for order_id in (held, waiting)])
    worker = NodeQueue(lab_a, timetable, worker_timeout=WORKER_TIMEOUT)
    worker.fetch(1, ())
    assert await relay.withdraw(LAB_A, held) is Withdrawal.IN_FLIGHT
    worker.close()
    assert await relay.stranded([LAB_A, NodeId("lab-b")]) == Stranded({LAB_A: (held,)}, ())
    assert await relay.withdraw(LAB_A, held) is Withdrawal.WITHDRAWN
    assert await relay.withdraw(LAB_A, waiting) is Withdrawal.WITHDRAWN
    assert await relay.withdraw(LAB_A, waiting) is Withdrawal.ABSENT
    assert admin.keys("ctl:*") == []


async def test_queue_corrupted_by_its_node_does_not_affect_another_node(
    lab_a: QueueAddress, relay: Relay, admin: redis.Redis
) -> None:
    admin.zadd(KEYS.messages, {"not a hash": 1})
    first, second = order_ids(2)
    corrupted, good = await relay.enqueue_many(
        [Outgoing(LAB_A, first, message(first)), Outgoing(NodeId("lab-b"), second, message(second))]
    )
    assert isinstance(corrupted, Rejected)
    assert good == Enqueued(1)


async def test_redis_without_free_memory_rejects_an_order_with_the_reason(program: Path) -> None:
    with server_folder() as folder, embedded.running_redis(folder, server=program) as server:
        async with Redis.from_url(server.url) as control:
            await redis_nodes.ensure_scripts(control)
            await control.config_set("maxmemory", 1)
            [order_id] = order_ids(1)
            outcome = await Relay(control).enqueue(LAB_A, order_id, message(order_id))
            assert isinstance(outcome, Rejected)
            assert "used memory > 'maxmemory'" in outcome.reason


async def test_unreachable_redis_raises_redis_unavailable_on_enqueue_and_queue_unavailable_on_fetch(
    program: Path, lab_a: QueueAddress, timetable: Timetable
) -> None:
    with server_folder() as folder:
        server = embedded.start(folder, server=program)
        server.stop()
        [order_id] = order_ids(1)
        async with Redis.from_url(server.url, retry=None) as control:
            with pytest.raises(RedisUnavailable):
                await Relay(control).enqueue(LAB_A, order_id, message(order_id))
        queue = NodeQueue(address(server, "lab-a"), timetable, worker_timeout=WORKER_TIMEOUT)
        with pytest.raises(QueueUnavailable):
            queue.fetch(1, ())


def _only_worker(admin: redis.Redis) -> str:
    [worker] = admin.zrange(KEYS.workers, 0, -1)
    return str(worker)


async def _users(control: Redis) -> None:
    await redis_nodes.ensure_node_users(control, [login("lab-a")])


async def _send(relay: Relay, due: list[Outgoing]) -> None:
    outcomes: tuple[Outcome, ...] = await relay.enqueue_many(due)
    assert not any(isinstance(outcome, Rejected | QueueFull) for outcome in outcomes)


async def _nothing_due() -> None:
    """Do nothing instead of sending due orders, because no order is due."""
