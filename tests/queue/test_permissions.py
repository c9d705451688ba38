"""Tests that a node's Redis user may take the node's own orders and do nothing else (PLT-2, P20)."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from redis.asyncio import Redis

from control_plane.queues import redis_nodes
from control_plane.queues.relay import AlreadyQueued, Relay, Requeued, Stranded, Withdrawal
from deploy.embedded.redis import RedisServer
from events.values import NodeId
from node_agent.transport.broker import QueueAddress
from tasks.scripts import ALL_SCRIPTS, MAX_ARGUMENTS, NODE_COMMANDS, NODE_SCRIPTS, QueueKeys
from tests.queue.conftest import PASSWORD, address, end_session, login, start_session
from tests.queue.node import message, order_ids

OWN = QueueKeys.of("ctl:lab-a")
_Connection: Any = redis.Connection  # redis-py ships it without types
Words = tuple[str | int | float, ...]


@pytest.fixture
def as_node(lab_a: QueueAddress) -> Iterator[Any]:
    connection = _connect(lab_a)
    yield connection
    connection.disconnect()


def _connect(address: QueueAddress, password: str = PASSWORD) -> Any:
    return _Connection(
        host=address.host, port=address.port, username=address.username, password=password, protocol=2
    )


def _answer(connection: Any, *words: str | bytes | int | float) -> Any:
    connection.connect()
    connection.send_command(*words)
    return connection.read_response()


def _every_command(server: RedisServer) -> Iterator[tuple[str, int]]:
    """Yield the name (`container|subcommand` for a subcommand) and minimum argument count of every Redis command."""
    connection = _Connection(
        host=server.address, port=server.port, username="sliceplane", password=server.password, protocol=2
    )
    pending = _answer(connection, "COMMAND")
    connection.disconnect()
    while pending:
        name, arity, flags, *rest = pending.pop()
        parts = rest[6] if len(rest) > 6 else []
        pending += parts
        # AUTH, HELLO, QUIT and RESET are available to every connection, regardless of the ACL rules.
        if not parts and b"no_auth" not in flags:
            yield name.decode(), abs(arity)


def test_redis_user_of_a_node_is_denied_every_command_except_the_listed_commands(
    server: RedisServer, as_node: Any
) -> None:
    always = {"auth", "hello", "quit", "reset"}
    others = [
        (name, words) for name, words in _every_command(server) if name not in {*NODE_COMMANDS, *always}
    ]
    assert len(others) > 180
    for name, words in others:
        command = name.split("|")
        with pytest.raises(redis.exceptions.ResponseError) as refused:
            _answer(as_node, *command, *["x"] * (words - len(command)))
        # EXEC wraps the error. DEBUG and MODULE are disabled for all users before the permissions are checked.
        assert "no permissions" in str(refused.value) or "command not allowed" in str(refused.value), name


@pytest.mark.parametrize(
    "words",
    [
        ("EVAL", "while true do end", 0),
        ("SCRIPT", "LOAD", "return 1"),
        ("SCRIPT", "FLUSH"),
        ("SCRIPT", "KILL"),
        ("KEYS", "*"),
        ("SCAN", 0),
        ("FLUSHALL",),
        ("FLUSHDB",),
        ("CONFIG", "GET", "*"),
        ("CONFIG", "SET", "maxmemory", 0),
        ("ACL", "LIST"),
        ("ACL", "SETUSER", "node-lab-a", "+@all"),
        ("CLIENT", "LIST"),
        ("CLIENT", "KILL", "TYPE", "normal"),
        ("CLIENT", "PAUSE", 1000),
        ("SUBSCRIBE", "orders"),
        ("PSUBSCRIBE", "*"),
        ("PUBLISH", "orders", "x"),
        ("INFO",),
        ("MONITOR",),
        ("SHUTDOWN",),
        ("REPLICAOF", "NO", "ONE"),
        ("MIGRATE", "127.0.0.1", 1, "k", 0, 1),
        ("MODULE", "LIST"),
        ("SELECT", 1),
        ("MULTI",),
        ("GET", OWN.messages),
        ("DEL", OWN.messages),
        ("RENAME", OWN.messages, OWN.held),
        # Commands with a cost that grows with the data that the node wrote.
        ("LREM", OWN.waiting, 0, "x"),
        ("LRANGE", OWN.waiting, 0, -1),
        ("LINSERT", OWN.waiting, "BEFORE", "x", "y"),
        ("LPOS", OWN.waiting, "x"),
        ("LINDEX", OWN.waiting, 1000),
        ("HGETALL", OWN.held),
        ("HKEYS", OWN.held),
        ("HSCAN", OWN.held, 0, "COUNT", 100_000),
        ("HRANDFIELD", OWN.held, 100_000),
        ("ZREMRANGEBYSCORE", OWN.workers, "-inf", "+inf"),
        ("ZRANGE", OWN.workers, 0, -1),
        ("SORT", OWN.waiting),
    ],
    ids=lambda words: " ".join(str(word) for word in words[:2]),
)
def test_redis_user_of_a_node_is_denied_a_hostile_command(as_node: Any, words: Words) -> None:
    with pytest.raises(redis.exceptions.NoPermissionError):
        _answer(as_node, *words)


@pytest.mark.parametrize(
    "key", [QueueKeys.of("ctl:lab-b").waiting, "ctl:lab-ab:slices", "ctl:lab-a:other", "sliceplane:restored"]
)
def test_permitted_redis_commands_of_a_node_on_a_key_of_another_owner_are_denied(
    as_node: Any, key: str
) -> None:
    reaches: list[Words] = [
        ("LPOP", key),
        ("LPUSH", key, "x"),
        ("HGET", key, "x"),
        ("HSET", key, "x", "x"),
        ("HDEL", key, "x"),
        ("HINCRBY", key, "x", 1),
        ("HSTRLEN", key, "x"),
        ("ZADD", key, 1, "x"),
        ("ZREM", key, "x"),
        ("BLMOVE", key, OWN.waiting, "LEFT", "LEFT", 0.01),
        ("BLMOVE", OWN.waiting, key, "LEFT", "LEFT", 0.01),
    ]
    with_keys = {"evalsha", *(words[0].lower() for words in reaches if isinstance(words[0], str))}
    assert with_keys == set(NODE_COMMANDS) - {"auth", "hello", "ping", "client|setname", "time"}
    for words in reaches:
        with pytest.raises(redis.exceptions.NoPermissionError):
            _answer(as_node, *words)


def test_queue_scripts_called_with_a_key_of_another_node_are_denied(as_node: Any) -> None:
    foreign = QueueKeys.of("ctl:lab-b").all()
    for script in ALL_SCRIPTS:
        for mixed in (foreign, (*OWN.all()[:4], foreign[4]), (foreign[0], *OWN.all()[1:])):
            with pytest.raises(redis.exceptions.ResponseError, match=r"(?i)permission|can't access"):
                _answer(as_node, "EVALSHA", script.sha, 5, *mixed, "x", "x", 1, 1)


def test_queue_scripts_called_with_too_many_arguments_fail_without_effect(
    as_node: Any, admin: redis.Redis
) -> None:
    for script in NODE_SCRIPTS:
        with pytest.raises(redis.exceptions.ResponseError, match="too many arguments"):
            _answer(as_node, "EVALSHA", script.sha, 5, *OWN.all(), "worker", *[1] * MAX_ARGUMENTS)
    assert admin.keys("ctl:*") == []


NODES = tuple(f"lab-{letter}" for letter in "abcdefgh")
"""Ids of the eight nodes that attack each other; promise P20 requires eight."""
PAIRS = [(node, victim) for node in NODES for victim in NODES if node != victim]


def hostile_to(node: str, victim: str) -> list[Words]:
    """Return Redis commands by which a hostile node could take, forge, delete or hold the orders of another node,
    impersonate that node or block it.
    """
    own, keys = QueueKeys.of(f"ctl:{node}"), QueueKeys.of(f"ctl:{victim}")
    scripts: list[Words] = [("EVALSHA", script.sha, 5, *keys.all(), "x", 1, 1, 1) for script in ALL_SCRIPTS]
    return [
        ("LPOP", keys.waiting),
        ("BLMOVE", keys.waiting, own.waiting, "LEFT", "LEFT", 0.01),
        ("LPUSH", keys.waiting, "forged"),
        ("LREM", keys.waiting, 0, "an order"),
        ("HGET", keys.messages, "an order"),
        ("HGETALL", keys.messages),
        ("HSET", keys.messages, "an order", "forged"),
        ("HDEL", keys.messages, "an order"),
        ("HSET", keys.held, "an order", "no worker"),
        ("HDEL", keys.held, "an order"),
        ("HINCRBY", keys.deliveries, "an order", 1000),
        ("ZADD", keys.workers, 10**15, "permanent"),
        ("ZREM", keys.workers, "its worker"),
        ("ZREMRANGEBYSCORE", keys.workers, "-inf", "+inf"),
        ("DEL", *keys.all()),
        ("RENAME", keys.waiting, own.waiting),
        ("COPY", keys.messages, own.messages),
        ("EVAL", "return redis.call('LPOP', KEYS[1])", 1, keys.waiting),
        ("ACL", "SETUSER", f"node-{victim}", "off"),
        ("ACL", "SETUSER", f"node-{victim}", ">mine"),
        ("CLIENT", "KILL", "USER", f"node-{victim}"),
        ("AUTH", f"node-{victim}", PASSWORD.upper()),
        *scripts,
    ]


async def test_hostile_redis_commands_between_eight_nodes_are_denied_and_change_no_data(
    server: RedisServer, control: Redis, admin: redis.Redis
) -> None:
    await redis_nodes.ensure_scripts(control)
    await redis_nodes.ensure_node_users(control, [login(node) for node in NODES])
    relay, orders = Relay(control), {node: order_ids(2) for node in NODES}
    for node, ids in orders.items():
        for order_id in ids:
            await relay.enqueue(NodeId(node), order_id, message(order_id))
    before = {key: admin.dump(key) for key in sorted(admin.keys("ctl:*"))}
    assert len(before) == 2 * len(NODES)
    connections = {node: _connect(address(server, node)) for node in NODES}
    for node, victim in PAIRS:
        tried = hostile_to(node, victim)
        assert len(tried) >= 20
        for words in tried:
            with pytest.raises(redis.exceptions.RedisError):
                _answer(connections[node], *words)
    assert {key: admin.dump(key) for key in sorted(admin.keys("ctl:*"))} == before
    for node, connection in connections.items():
        assert _answer(connection, "PING") == b"PONG", node
        connection.disconnect()


def test_redis_connection_without_credentials_is_denied_a_command(server: RedisServer) -> None:
    connection = _Connection(host=server.address, port=server.port, protocol=2)
    with pytest.raises(redis.exceptions.AuthenticationError):
        _answer(connection, "PING")
    connection.disconnect()


async def test_old_redis_password_of_a_node_is_rejected_after_a_new_password_is_set(
    server: RedisServer, control: Redis, lab_a: QueueAddress
) -> None:
    await start_session(control, login("lab-a", "rotated"))
    with pytest.raises(redis.exceptions.AuthenticationError):
        _answer(_connect(lab_a), "PING")
    assert _answer(_connect(lab_a, "rotated"), "PING") == b"PONG"


async def test_redis_connections_with_a_nodes_old_password_are_closed_when_a_new_password_is_set(
    control: Redis, as_node: Any
) -> None:
    assert _answer(as_node, "PING") == b"PONG"
    await start_session(control, login("lab-a", "rotated"))
    with pytest.raises(redis.exceptions.RedisError):
        _answer(as_node, "PING")


async def test_worker_name_that_is_not_valid_utf8_does_not_break_enqueueing(
    control: Redis, relay: Relay, as_node: Any
) -> None:
    [order_id, other] = order_ids(2)
    clock = _answer(as_node, "TIME")
    _answer(as_node, "ZADD", OWN.workers, int(clock[0]) * 1000 + 60_000, b"\xff")
    _answer(as_node, "HSET", OWN.held, str(order_id), b"\xff")
    _answer(as_node, "HSET", OWN.held, str(other), b"\xfe")
    assert isinstance(await relay.enqueue(NodeId("lab-a"), order_id, message(order_id)), AlreadyQueued)
    assert isinstance(await relay.enqueue(NodeId("lab-a"), other, message(other)), Requeued)


async def test_withdrawal_of_an_order_reports_a_queue_in_which_its_node_wrote_foreign_data_as_spoilt(
    control: Redis, relay: Relay, as_node: Any
) -> None:
    [order_id] = order_ids(1)
    _answer(as_node, "HSET", OWN.held, str(order_id), "a dead worker")
    _answer(as_node, "HSET", OWN.waiting, "not", "a list")
    assert await relay.stranded([NodeId("lab-a")]) == Stranded({NodeId("lab-a"): (order_id,)}, ())
    assert await relay.withdraw(NodeId("lab-a"), order_id) is Withdrawal.SPOILT


async def test_queue_in_which_a_node_claims_to_hold_more_orders_than_the_limit_is_reported_as_flooded(
    relay: Relay, as_node: Any
) -> None:
    ids = order_ids(9)
    _answer(as_node, "HSET", OWN.held, *(word for each in ids[:8] for word in (str(each), "a dead worker")))
    found = await relay.stranded([NodeId("lab-a")])
    assert (set(found.orders[NodeId("lab-a")]), found.flooded) == (set(ids[:8]), ())
    _answer(as_node, "HSET", OWN.held, str(ids[8]), "a dead worker")
    assert await relay.stranded([NodeId("lab-b"), NodeId("lab-a")]) == Stranded({}, (NodeId("lab-a"),))


async def test_redis_permission_of_a_node_granted_by_an_older_release_is_removed_by_its_next_session(
    control: Redis, admin: redis.Redis, lab_a: QueueAddress
) -> None:
    admin.acl_setuser("node-lab-a", enabled=True, commands=["+keys"], keys=["*"])
    await start_session(control, login("lab-a"))
    with pytest.raises(redis.exceptions.NoPermissionError):
        _answer(_connect(lab_a), "KEYS", "*")


async def test_revoked_node_is_disconnected_and_its_keys_are_deleted(
    control: Redis, admin: redis.Redis, as_node: Any
) -> None:
    _answer(as_node, "LPUSH", OWN.waiting, *["flood"] * 1000)
    await end_session(control, NodeId("lab-a"))
    assert admin.keys("ctl:*") == []
    with pytest.raises(redis.exceptions.ConnectionError):
        _answer(as_node, "PING")
