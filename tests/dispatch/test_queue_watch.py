"""Tests of the limit of Redis resources per node (P20): a node that uses more than its work can need is revoked,
without loss for other nodes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from structlog.testing import capture_logs

from control_plane.commands.identity import enrol_node, verify_enrolment
from control_plane.commands.nodes import register_node
from control_plane.dispatcher.task_sender import TaskSender
from control_plane.origin import Origin
from control_plane.queues.queue_users import QueueUsers
from control_plane.queues.queue_watch import GROWN_BYTES, GROWN_CONNECTIONS, ROUND, QueueWatch
from control_plane.queues.queue_weights import FLOOD, FLOOD_CONNECTIONS, KEPT_CONNECTIONS, NEARLY_FLOODED
from control_plane.queues.relay import MAX_DEPTH, Enqueued, QueueFull, Relay
from control_plane.settings import SLICE_NETWORKS
from control_plane.wiring import Plane
from deploy.embedded.redis import RedisServer
from events.values import NodeId, new_uuid
from tasks.catalogue import CATALOGUE
from tasks.scripts import ENQUEUE, FETCH, REQUEUE, QueueKeys
from tasks.wire import sealed_bytes
from tests.api.node import QUEUE_PASSWORD, enrolment
from tests.dispatch.given import Given, a_task

Enrol = Callable[[str], Awaitable[NodeId]]
Connect = Callable[[str], redis.Redis]
MIB = 1 << 20
KEYS = QueueKeys.of("ctl:n1")


@pytest.fixture
def watch(made: Plane) -> QueueWatch:
    return QueueWatch(made.engine, made.redis, made.handle)


@pytest.fixture
def enrol(made: Plane) -> Enrol:
    async def enrol(name: str) -> NodeId:
        origin, token = Origin("test", "a node", new_uuid()), f"enrolment-token-of-{name}"
        await made.handle(register_node(NodeId(name), token, origin, SLICE_NETWORKS))
        request = verify_enrolment(enrolment(name, token))
        await made.handle(enrol_node(request, origin, timedelta(hours=1)))
        await QueueUsers(made.engine, made.redis).follow(NodeId(name))
        return NodeId(name)

    return enrol


@pytest.fixture
def connect(redis_server: RedisServer) -> Iterator[Connect]:
    """Return a function that opens one Redis connection with the credentials of a node."""
    made = list[redis.Redis]()

    def connect(name: str) -> redis.Redis:
        client = redis.Redis(
            "127.0.0.1",
            redis_server.port,
            username=f"node-{name}",
            password=QUEUE_PASSWORD,
            single_connection_client=True,
            retry=Retry(NoBackoff(), 0),
        )
        made.append(client)
        return client

    yield connect
    for client in made:
        client.close()


@pytest.fixture
async def two_nodes(enrol: Enrol, connect: Connect) -> redis.Redis:
    """Enrol the nodes n1 and n2, and return a Redis connection with the credentials of n1."""
    await enrol("n1")
    await enrol("n2")
    return connect("n1")


def fill(node: redis.Redis, size: int) -> None:
    """Write at least `size` bytes to one of the Redis keys of the node n1."""
    for number in range(size // 500_000 + 1):
        node.hset(KEYS.messages, f"junk-{number}", "x" * 500_000)


def keys_measured(admin: redis.Redis) -> int:
    """Return the number of MEMORY USAGE commands that Redis has run; the queue watch measures each key with one."""
    stats_by_command = admin.info("commandstats")
    return sum(
        int(stats["calls"]) for name, stats in stats_by_command.items() if name.startswith("cmdstat_memory")
    )


def state(given: Given, name: str) -> tuple[str, str | None]:
    [found] = given.rows("select state, revoked from read.node where node_id = %(name)s", name=name)
    return found[0], found[1]


def revocations(given: Given) -> list[tuple[Any, ...]]:
    return given.rows("select data::jsonb ->> 'reason', actor from ledger.event where type = 'node.revoked'")


async def test_node_that_floods_its_queue_is_revoked_at_the_next_check(
    watch: QueueWatch, enrol: Enrol, connect: Connect, given: Given, admin: redis.Redis
) -> None:
    await enrol("n1")
    await enrol("n2")
    await watch.look()
    node, other = connect("n1"), connect("n2")
    fill(node, FLOOD.bytes)
    await watch.look()
    [(reason, actor)] = revocations(given)
    assert reason.startswith("queue_flooded: ")
    assert int(reason.removeprefix("queue_flooded: the node's queue has ").split()[0]) > FLOOD.bytes
    assert actor == "process:queue_watch"
    assert state(given, "n1") == ("revoked", reason)
    assert admin.keys("ctl:n1:*") == []
    with pytest.raises(redis.ConnectionError):
        node.ping()
    with pytest.raises(redis.AuthenticationError):
        connect("n1")
    assert other.ping()
    assert state(given, "n2") == ("enrolled", None)


async def test_queue_with_the_maximum_of_regular_orders_is_not_reported_as_flooded(
    made: Plane, watch: QueueWatch, enrol: Enrol, connect: Connect, given: Given
) -> None:
    node = await enrol("n1")
    largest = b"x" * (max(map(sealed_bytes, CATALOGUE)) + 512)
    # One at a time: a busy machine does not accept all of them within one Redis timeout.
    relay = Relay(made.redis)
    outcomes = [await relay.enqueue(node, new_uuid(), largest) for _ in range(MAX_DEPTH + 1)]
    assert [type(each) for each in outcomes] == [Enqueued] * MAX_DEPTH + [QueueFull]
    agent = connect("n1")
    for worker in range(3):
        agent.evalsha(FETCH.sha, 5, *KEYS.all(), f"worker-{worker}", 64)
    with capture_logs() as lines:
        for _ in range(ROUND + 1):
            await watch.look()
    assert [each["event"] for each in lines if "flood" in each["event"]] == []
    assert state(given, "n1") == ("enrolled", None)


async def test_queue_flooded_with_small_entries_is_detected_within_one_round_of_checks(
    watch: QueueWatch, enrol: Enrol, connect: Connect, given: Given
) -> None:
    """Each entry in the queue is so small that the growth of Redis does not trigger a check of all queues."""
    await enrol("n1")
    await watch.look()
    connect("n1").zadd(KEYS.workers, {f"worker-{number}": number for number in range(FLOOD.entries + 1)})
    await watch.look()
    assert state(given, "n1") == ("enrolled", None)
    for _ in range(ROUND):
        await watch.look()
    assert state(given, "n1")[0] == "revoked"


async def test_flooded_redis_key_of_an_unexpected_type_is_detected(
    watch: QueueWatch, enrol: Enrol, connect: Connect, given: Given
) -> None:
    await enrol("n1")
    connect("n1").lpush(KEYS.messages, *range(FLOOD.entries + 1))
    await watch.look()
    assert state(given, "n1")[0] == "revoked"


async def test_one_round_of_the_queue_watch_checks_all_queues_a_few_at_a_time(
    watch: QueueWatch, enrol: Enrol, connect: Connect, given: Given, admin: redis.Redis
) -> None:
    given.rows(
        """insert into read.node
        (node_id, version, state, subnet, l2_domain, token_sha256, token_expires_at, key_thumbprint)
        select 'a' || number, 1, 'enrolled', '', '', '', clock_timestamp(), 'some key'
        from generate_series(1, %(count)s) number returning 1""",
        count=3 * ROUND,
    )
    await enrol("n1")
    await watch.look()
    connect("n1").zadd(KEYS.workers, {f"worker-{number}": number for number in range(FLOOD.entries + 1)})
    before = keys_measured(admin)
    await watch.look()
    assert keys_measured(admin) - before <= 4 * len(KEYS.all())
    for _ in range(ROUND):
        await watch.look()
    assert state(given, "n1")[0] == "revoked"


async def test_node_with_a_flooded_queue_is_revoked_once_by_two_concurrent_queue_watches(
    made: Plane, enrol: Enrol, connect: Connect, given: Given, admin: redis.Redis
) -> None:
    await enrol("n1")
    fill(connect("n1"), FLOOD.bytes)
    watches = [QueueWatch(made.engine, made.redis, made.handle) for _ in range(2)]
    await asyncio.gather(*(watch.look() for watch in watches))
    assert len(revocations(given)) == 1
    assert admin.keys("ctl:n1:*") == []


async def test_queue_above_half_of_the_flood_limit_is_logged_once(
    watch: QueueWatch, enrol: Enrol, connect: Connect, given: Given, admin: redis.Redis
) -> None:
    await enrol("n1")
    node = connect("n1")
    fill(node, NEARLY_FLOODED.bytes)
    with capture_logs() as lines:
        for _ in range(2 * ROUND):
            await watch.look()
    about_queues = [each for each in lines if "flood" in each["event"]]
    logged = [(each["event"], each["node"]) for each in about_queues]
    assert logged == [("task_queue_exceeds_half_of_flood_limit", "n1")]
    assert state(given, "n1") == ("enrolled", None)
    admin.delete(KEYS.messages)
    for _ in range(2 * ROUND):
        await watch.look()
    fill(node, NEARLY_FLOODED.bytes)
    with capture_logs() as lines:
        await watch.look()
    assert [each["event"] for each in lines] == ["task_queue_exceeds_half_of_flood_limit"]


async def test_task_that_did_not_fit_into_a_flooded_redis_is_sent_after_the_flood(
    watch: QueueWatch, two_nodes: redis.Redis, given: Given, task_sender: TaskSender, admin: redis.Redis
) -> None:
    fill(two_nodes, 2 * FLOOD.bytes)
    admin.config_set("maxmemory", FLOOD.bytes)
    [order] = await given.tasks(a_task("n2"))
    given.heartbeat("n2")
    await task_sender.send_due()
    assert given.states("n2") == {("due", True): 1}
    assert admin.keys("ctl:n2:*") == []
    await watch.look()
    assert state(given, "n1")[0] == "revoked"
    given.overdue()
    await task_sender.send_due()
    assert admin.lrange("ctl:n2:slices", 0, -1) == [str(order)]


async def test_oldest_redis_connections_of_a_node_above_its_limit_are_closed(
    watch: QueueWatch, enrol: Enrol, connect: Connect, given: Given
) -> None:
    await enrol("n1")
    await enrol("n2")
    await watch.look()
    others = [connect("n2") for _ in range(KEPT_CONNECTIONS)]
    own = [connect("n1") for _ in range(GROWN_CONNECTIONS + KEPT_CONNECTIONS)]
    await watch.look()
    for ended in own[:-KEPT_CONNECTIONS]:
        with pytest.raises(redis.ConnectionError):
            ended.ping()
    assert all(kept.ping() for kept in (*own[-KEPT_CONNECTIONS:], *others))
    assert state(given, "n1") == ("enrolled", None)


async def test_node_with_too_many_redis_connections_is_revoked(
    watch: QueueWatch, enrol: Enrol, connect: Connect, given: Given, admin: redis.Redis
) -> None:
    await enrol("n1")
    await watch.look()
    own = [connect("n1") for _ in range(FLOOD_CONNECTIONS + 1)]
    await watch.look()
    assert state(given, "n1")[1] is not None
    assert f"{len(own)} Redis connections" in str(state(given, "n1")[1])
    assert all(each["user"] != "node-n1" for each in admin.client_list())


async def test_redis_user_that_floods_redis_and_belongs_to_no_registered_node_is_deleted(
    watch: QueueWatch, connect: Connect, given: Given, admin: redis.Redis
) -> None:
    admin.acl_setuser("node-n1", enabled=True, passwords=[f"+{QUEUE_PASSWORD}"], commands=["+ping"])
    own = [connect("n1") for _ in range(FLOOD_CONNECTIONS + 1)]
    await watch.look()
    assert admin.acl_getuser("node-n1") is None
    with pytest.raises(redis.ConnectionError):
        own[-1].ping()
    assert revocations(given) == []


@pytest.mark.parametrize(
    "words",
    [("ZREM", KEYS.workers), ("HDEL", KEYS.held), ("EVALSHA", REQUEUE.sha, 5, *KEYS.all(), "absent")],
    ids=["ZREM", "HDEL", "a script"],
)
async def test_node_that_sends_a_redis_command_with_a_million_arguments_is_revoked_even_if_nothing_is_stored(
    watch: QueueWatch, two_nodes: redis.Redis, given: Given, words: tuple[str | int, ...]
) -> None:
    two_nodes.zadd(KEYS.workers, {"a worker": 1})
    # Twenty fields, so that each argument of HDEL takes time: a fast machine compares one field in under 10 ms.
    two_nodes.hset(KEYS.held, mapping={f"order {number}": "a worker" for number in range(20)})
    with suppress(redis.ResponseError):
        two_nodes.execute_command(*words, *["ctl:n2:slices"] * 1_000_000)
    await watch.look()
    assert state(given, "n1")[0] == "revoked"
    assert state(given, "n2") == ("enrolled", None)


async def test_node_is_not_revoked_for_slow_commands_of_another_node_that_name_its_keys(
    watch: QueueWatch, two_nodes: redis.Redis, given: Given
) -> None:
    for count, name in ((0, REQUEUE), (0, ENQUEUE)):
        with pytest.raises(redis.ResponseError):
            two_nodes.execute_command("EVALSHA", name.sha, count, *["ctl:n2:slices"] * 1_000_000)
    await watch.look()
    assert state(given, "n2") == ("enrolled", None)


async def test_queue_flood_is_detected_after_redis_is_reachable_again(
    watch: QueueWatch, enrol: Enrol, connect: Connect, given: Given, redis_server: RedisServer
) -> None:
    await enrol("n1")
    fill(connect("n1"), FLOOD.bytes)
    redis_server.process.send_signal(19)
    try:
        with capture_logs() as lines:
            await watch.look()
        assert [each["event"] for each in lines] == ["redis_unavailable"]
    finally:
        redis_server.process.send_signal(18)
    await watch.look()
    assert state(given, "n1")[0] == "revoked"


def test_queue_flood_limits_of_one_node_leave_memory_and_connections_for_other_nodes() -> None:
    assert GROWN_BYTES < NEARLY_FLOODED.bytes < FLOOD.bytes < 64 * MIB
    assert 2 < KEPT_CONNECTIONS < GROWN_CONNECTIONS < FLOOD_CONNECTIONS
