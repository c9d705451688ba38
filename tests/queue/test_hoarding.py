"""What one connection of a node may make Redis hold: little, and not for long (P20)."""

import socket
from collections.abc import Iterator

import pytest
import redis
from redis.asyncio import Redis

from control_plane.queue_weights import (
    FLOOD,
    FLOOD_CONNECTIONS,
    KEPT_CONNECTIONS,
    STRANGER_SECONDS,
    Connection,
    connections,
    crowd_of,
    is_password_asked,
)
from deploy.embedded.redis import RedisServer
from events.values import NodeId
from tasks.broker import QueueAddress
from tasks.scripts import QueueKeys
from tests.queue.bare import words
from tests.queue.conftest import PASSWORD

OWN = QueueKeys.of("ctl:lab-a")
MIB = 1 << 20


@pytest.fixture
def wire(lab_a: QueueAddress) -> Iterator[socket.socket]:
    """The node's bare connection: it may say half a command, and read nothing."""
    with socket.create_connection((lab_a.host, lab_a.port), 10) as made:
        made.sendall(words("AUTH", lab_a.username, PASSWORD))
        assert made.recv(16) == b"+OK\r\n"
        yield made


def flood(wire: socket.socket, part: bytes, times: int) -> bool:
    """Send it so often; whether Redis hung up before the end."""
    try:
        for _ in range(times):
            wire.sendall(part)
    except OSError:
        return True
    return False


def used(admin: redis.Redis) -> int:
    return int(admin.info("memory")["used_memory"])


def test_what_is_announced_takes_no_memory(wire: socket.socket, admin: redis.Redis) -> None:
    before = used(admin)
    wire.sendall(words("HSET", OWN.messages, "x").replace(b"*3", b"*4") + b"$500000000\r\n")
    assert b"invalid bulk length" in wire.recv(100)
    assert used(admin) - before < MIB


def test_answers_that_nobody_reads_end_the_connection(wire: socket.socket, admin: redis.Redis) -> None:
    admin.hset(OWN.messages, "1", "x" * 900_000)
    before = used(admin)
    assert flood(wire, words("HGET", OWN.messages, "1"), 100_000)
    assert used(admin) - before < 4 * MIB


def test_a_large_answer_that_is_read_is_no_matter(wire: socket.socket, admin: redis.Redis) -> None:
    admin.hset(OWN.messages, "1", "x" * 900_000)
    wire.sendall(words("HGET", OWN.messages, "1") * 8 + words("PING"))
    got = bytearray()
    while not got.endswith(b"+PONG\r\n"):
        got += wire.recv(MIB)
    assert len(got) > 8 * 900_000


async def test_a_command_without_end_is_ended_or_found(
    wire: socket.socket, admin: redis.Redis, control: Redis
) -> None:
    """Redis 7 ends it by itself; before that, the control plane finds whose it is."""
    wire.sendall(b"*1000000\r\n$5\r\nLPUSH\r\n")
    part = b"$1000000\r\n" + b"x" * 1_000_000 + b"\r\n"
    if not flood(wire, part, 2 * 128):
        assert admin.info("server")["redis_version"].startswith("6.")
        found = crowd_of(await connections(control))
        assert list(found.floods) == ["lab-a"]


@pytest.mark.usefixtures("wire")
async def test_everybody_who_is_connected_is_listed(control: Redis, server: RedisServer) -> None:
    with socket.create_connection((server.address, server.port), 10) as stranger:
        stranger.sendall(b"PING\r\n")
        assert stranger.recv(100).startswith(b"-NOAUTH")
        found = await connections(control)
    assert [each.user for each in found if each.user != "sliceplane"] == ["node-lab-a", "default"]
    assert all(each.bytes > 0 and 0 <= each.age < 60 for each in found)


def several(user: str, count: int, *, first: int = 1, age: int = 0, size: int = 2000) -> list[Connection]:
    return [Connection(first + number, user, age, size) for number in range(count)]


def test_two_connections_a_node_and_those_of_the_control_plane_are_usual() -> None:
    found = [*several("sliceplane", 40), *several("node-a", 2, first=50), *several("node-b", 8, first=60)]
    crowd = crowd_of(found)
    assert (crowd.ended, crowd.floods, crowd.usual) == ([], {}, 50)


def test_the_oldest_beyond_what_a_node_keeps_end() -> None:
    crowd = crowd_of(several("node-a", KEPT_CONNECTIONS + 3))
    assert (crowd.ended, crowd.floods, crowd.usual) == ([1, 2, 3], {}, KEPT_CONNECTIONS)


def test_who_shows_no_password_is_given_some_seconds() -> None:
    old = several("default", 2, age=STRANGER_SECONDS + 1)
    new = several("default", 3, first=10, age=STRANGER_SECONDS)
    crowd = crowd_of([*old, *new])
    assert (crowd.ended, crowd.floods, crowd.usual) == ([1, 2], {}, 0)


async def test_where_the_default_user_is_on_nobody_is_taken_for_a_stranger(
    control: Redis, admin: redis.Redis
) -> None:
    assert await is_password_asked(control)
    admin.execute_command("ACL", "SETUSER", "default", "on", ">secret")
    assert not await is_password_asked(control)
    crowd = crowd_of(several("default", 2, age=STRANGER_SECONDS + 1), password_asked=False)
    assert (crowd.ended, crowd.usual) == ([], 2)


@pytest.mark.parametrize(
    "own",
    [several("node-a", FLOOD_CONNECTIONS + 1), several("node-a", 3, size=FLOOD.bytes // 3 + 1)],
    ids=["hundreds", "heavy ones"],
)
def test_too_many_or_too_heavy_connections_are_a_flood(own: list[Connection]) -> None:
    crowd = crowd_of([*own, *several("node-b", 2, first=1000)])
    assert list(crowd.floods) == [NodeId("a")]
    assert crowd_of(own[1:]).floods == {}
