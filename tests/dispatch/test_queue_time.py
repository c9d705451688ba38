"""A node that keeps Redis busy is revoked, whatever it sends, and a node that works is not (P20)."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from control_plane.queue_time import FLOOD_SECONDS, denied_of, sample_of
from control_plane.queue_watch import QueueWatch
from control_plane.relay import Relay
from control_plane.wiring import Plane
from deploy.embedded.redis import RedisServer
from events.values import NodeId, new_uuid
from tasks.scripts import ENQUEUE, FETCH, PUT_BACK, QueueKeys
from tests.api.node import QUEUE_PASSWORD
from tests.dispatch.given import Given
from tests.dispatch.test_queue_watch import Connect, Enrol, connect, enrol, revocations, state, watch
from tests.queue.bare import words

__all__ = ["connect", "enrol", "watch"]
KEYS = QueueKeys.of("ctl:n1")
NODES = [f"n{number}" for number in range(1, 9)]
SECONDS = 60


@contextmanager
def pipelined(server: RedisServer, command: bytes, connections: int = 4) -> Iterator[None]:
    """n1 sends the command without end on some connections."""
    program = [sys.executable, "-m", "tests.queue.pipelining"]
    where = [server.address, str(server.port), "node-n1", str(connections)]
    process = subprocess.Popen([*program, *where], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    print(QUEUE_PASSWORD, command.hex(), sep="\n", file=process.stdin, flush=True)
    try:
        assert process.stdout.readline() == "sending\n"
        yield
    finally:
        process.kill()
        process.communicate()


async def looks_until(watch: QueueWatch, condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited {SECONDS} s in vain until {what}"
        await watch.look()
        await asyncio.sleep(0.05)


HOSTILE = {
    "ping": words("PING"),
    "hget": words("HGET", KEYS.messages, "nothing"),
    "a script": words("EVALSHA", FETCH.sha, 5, *KEYS.all(), "worker", 4),
    "a long script": words("EVALSHA", PUT_BACK.sha, 5, *KEYS.all(), "worker", *["x"] * 1000),
    "another's script": words("EVALSHA", ENQUEUE.sha, 5, *KEYS.all(), 256, 15000, "x", "x"),
    "a refused command": words("LREM", KEYS.waiting, 0, "x"),
    "refused keys": b"".join(words("HGET", f"ctl:n2:{number}", "x") for number in range(1000)),
}


@pytest.mark.parametrize("command", HOSTILE.values(), ids=HOSTILE)
async def test_node_that_pipelines_without_end_is_revoked_and_seven_others_are_not(
    watch: QueueWatch, enrol: Enrol, given: Given, redis_server: RedisServer, command: bytes
) -> None:
    for name in NODES:
        await enrol(name)
    await watch.look()
    with pipelined(redis_server, command):
        await looks_until(watch, lambda: state(given, "n1")[0] == "revoked", "it is revoked")
    assert [reason.split(":")[0] for reason, _ in revocations(given)] == ["queue_flooded"]
    assert {state(given, name)[0] for name in NODES[1:]} == {"enrolled"}


async def test_a_node_that_takes_orders_as_fast_as_it_can_is_not_revoked(
    made: Plane, watch: QueueWatch, enrol: Enrol, connect: Connect, given: Given
) -> None:
    node, relay = await enrol("n1"), Relay(made.redis)
    agent, end = connect("n1"), time.monotonic() + 3
    await watch.look()
    while time.monotonic() < end:
        second = time.monotonic() + 1
        while time.monotonic() < second:
            await relay.enqueue(node, order := new_uuid(), b"x" * 1000)
            assert agent.evalsha(FETCH.sha, 5, *KEYS.all(), "worker", 4)
            agent.hdel(KEYS.held, str(order))
            agent.hdel(KEYS.messages, str(order))
        await watch.look()
    assert state(given, "n1") == ("enrolled", None)


def samples(admin: redis.Redis) -> int:
    """Return how often Redis was configured, which begins and ends a sample."""
    said = admin.info("commandstats")
    return sum(int(stats["calls"]) for name, stats in said.items() if name.startswith("cmdstat_config"))


async def test_the_slow_log_is_as_before_after_a_sample(
    watch: QueueWatch, enrol: Enrol, redis_server: RedisServer, admin: redis.Redis, given: Given
) -> None:
    await enrol("n1")
    admin.config_set("slowlog-log-slower-than", 12_345)
    await watch.look()
    # That of the test's own and those of the sample.
    before = samples(admin) + 4
    with pipelined(redis_server, words("PING"), connections=1):
        await looks_until(watch, lambda: samples(admin) >= before, "a sample is taken")
    assert admin.config_get("slowlog-*") == {
        "slowlog-log-slower-than": "12345",
        "slowlog-max-len": "128",
    }
    assert state(given, "n1") == ("enrolled", None), "a second of it is not a flood"


def entry(usec: int, *command: bytes, address: bytes = b"127.0.0.1:1") -> list[Any]:
    return [1, 1, usec, [*command], address, b""]


def test_a_command_belongs_to_the_node_whose_key_it_names_or_whose_connection_it_came_by() -> None:
    fetch, enqueue = FETCH.sha.encode(), ENQUEUE.sha.encode()
    sample = sample_of(
        [
            entry(59, b"EVALSHA", fetch, b"5", b"ctl:a:slices"),
            entry(19, b"hget", b"ctl:b:slices.held", b"x"),
            entry(9, b"PING", address=b"127.0.0.1:2"),
            entry(9, b"EVALSHA", enqueue, b"5", b"ctl:d:slices"),
        ],
        {b"127.0.0.1:2": NodeId("c")},
        0.001,
    )
    assert sample.shares == {"a": 0.6, "b": 0.2, "c": 0.1}
    assert sample.busy == pytest.approx(0.1)


def test_a_wrong_password_is_not_counted_against_the_node_that_it_was_shown_for() -> None:
    def denied(reason: bytes, count: int) -> dict[bytes, Any]:
        return {b"username": b"node-a", b"reason": reason, b"count": count}

    assert denied_of([denied(b"auth", 5000), denied(b"command", 3), denied(b"key", 4)]) == {"a": 7}
    assert FLOOD_SECONDS >= 1
