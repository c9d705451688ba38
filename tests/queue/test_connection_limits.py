"""Tests that Redis limits how much memory a node's connections can occupy, and for how long (P20)."""

import socket
from collections.abc import Iterator

import pytest
import redis
from redis.asyncio import Redis

from control_plane.queues.queue_weights import (
    FLOOD,
    FLOOD_CONNECTIONS,
    KEPT_CONNECTIONS,
    UNAUTHENTICATED_SECONDS,
    Connection,
    connections,
    requires_password,
    review_connections,
)
from deploy.embedded.redis import RedisServer
from events.values import NodeId
from node_agent.transport.broker import QueueAddress
from tasks.scripts import QueueKeys
from tests.queue.conftest import PASSWORD
from tests.queue.redis_protocol import words

OWN = QueueKeys.of("ctl:lab-a")
MIB = 1 << 20


@pytest.fixture
def raw_connection(lab_a: QueueAddress) -> Iterator[socket.socket]:
    """TCP connection with the Redis credentials of a node, on which a test can send an incomplete command or leave
    replies unread.
    """
    with socket.create_connection((lab_a.host, lab_a.port), 10) as made:
        made.sendall(words("AUTH", lab_a.username, PASSWORD))
        assert made.recv(16) == b"+OK\r\n"
        yield made


def flood(raw_connection: socket.socket, part: bytes, times: int) -> bool:
    """Send the bytes `part` up to `times` times. Return whether Redis closed the connection before the end."""
    try:
        for _ in range(times):
            raw_connection.sendall(part)
    except OSError:
        return True
    return False


def used(admin: redis.Redis) -> int:
    return int(admin.info("memory")["used_memory"])


def test_redis_rejects_an_announced_argument_size_above_its_limit_without_allocating_memory(
    raw_connection: socket.socket, admin: redis.Redis
) -> None:
    before = used(admin)
    raw_connection.sendall(words("HSET", OWN.messages, "x").replace(b"*3", b"*4") + b"$500000000\r\n")
    assert b"invalid bulk length" in raw_connection.recv(100)
    assert used(admin) - before < MIB


def test_redis_connection_with_too_many_unread_replies_is_closed(
    raw_connection: socket.socket, admin: redis.Redis
) -> None:
    admin.hset(OWN.messages, "1", "x" * 900_000)
    before = used(admin)
    assert flood(raw_connection, words("HGET", OWN.messages, "1"), 100_000)
    assert used(admin) - before < 4 * MIB


def test_redis_connection_on_which_large_replies_are_read_is_not_closed(
    raw_connection: socket.socket, admin: redis.Redis
) -> None:
    admin.hset(OWN.messages, "1", "x" * 900_000)
    raw_connection.sendall(words("HGET", OWN.messages, "1") * 8 + words("PING"))
    got = bytearray()
    while not got.endswith(b"+PONG\r\n"):
        got += raw_connection.recv(MIB)
    assert len(got) > 8 * 900_000


async def test_redis_connection_with_an_endless_command_is_closed_or_reported_as_a_flood(
    raw_connection: socket.socket, admin: redis.Redis, control: Redis
) -> None:
    """Redis 7 closes such a connection itself. With Redis 6, the control plane detects the connection and its node."""
    raw_connection.sendall(b"*1000000\r\n$5\r\nLPUSH\r\n")
    part = b"$1000000\r\n" + b"x" * 1_000_000 + b"\r\n"
    if not flood(raw_connection, part, 2 * 128):
        assert admin.info("server")["redis_version"].startswith("6.")
        found = review_connections(await connections(control))
        assert list(found.floods) == ["lab-a"]


@pytest.mark.usefixtures("raw_connection")
async def test_redis_connection_list_contains_authenticated_and_unauthenticated_clients(
    control: Redis, server: RedisServer
) -> None:
    with socket.create_connection((server.address, server.port), 10) as unauthenticated:
        unauthenticated.sendall(b"PING\r\n")
        assert unauthenticated.recv(100).startswith(b"-NOAUTH")
        found = await connections(control)
    assert [each.user for each in found if each.user != "sliceplane"] == ["node-lab-a", "default"]
    assert all(each.bytes > 0 and 0 <= each.age < 60 for each in found)


def several(user: str, count: int, *, first: int = 1, age: int = 0, size: int = 2000) -> list[Connection]:
    return [Connection(first + number, user, age, size) for number in range(count)]


def test_connections_of_the_control_plane_and_up_to_eight_per_node_are_not_ended() -> None:
    found = [*several("sliceplane", 40), *several("node-a", 2, first=50), *several("node-b", 8, first=60)]
    review = review_connections(found)
    assert (review.ended, review.floods, review.usual) == ([], {}, 50)


def test_oldest_redis_connections_above_the_limit_of_a_node_are_ended() -> None:
    review = review_connections(several("node-a", KEPT_CONNECTIONS + 3))
    assert (review.ended, review.floods, review.usual) == ([1, 2, 3], {}, KEPT_CONNECTIONS)


def test_unauthenticated_redis_connections_are_ended_after_a_timeout() -> None:
    old = several("default", 2, age=UNAUTHENTICATED_SECONDS + 1)
    new = several("default", 3, first=10, age=UNAUTHENTICATED_SECONDS)
    review = review_connections([*old, *new])
    assert (review.ended, review.floods, review.usual) == ([1, 2], {}, 0)


async def test_redis_connections_of_the_default_user_are_not_ended_if_redis_requires_no_password(
    control: Redis, admin: redis.Redis
) -> None:
    assert await requires_password(control)
    admin.execute_command("ACL", "SETUSER", "default", "on", ">secret")
    assert not await requires_password(control)
    review = review_connections(
        several("default", 2, age=UNAUTHENTICATED_SECONDS + 1), password_required=False
    )
    assert (review.ended, review.usual) == ([], 2)


@pytest.mark.parametrize(
    "own",
    [several("node-a", FLOOD_CONNECTIONS + 1), several("node-a", 3, size=FLOOD.bytes // 3 + 1)],
    ids=["too-many", "too-heavy"],
)
def test_too_many_or_too_large_redis_connections_of_a_node_are_reported_as_a_flood(
    own: list[Connection],
) -> None:
    review = review_connections([*own, *several("node-b", 2, first=1000)])
    assert list(review.floods) == [NodeId("a")]
    assert review_connections(own[1:]).floods == {}
