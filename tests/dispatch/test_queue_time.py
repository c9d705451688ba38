"""Tests of the limit of Redis processor time per node (P20): a node that keeps Redis busy by any command is revoked,
and a node that executes orders is not.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from control_plane.queues.queue_time import FLOOD_SECONDS, denied_of, sample_of
from control_plane.queues.queue_watch import QueueWatch
from control_plane.queues.relay import Relay
from control_plane.wiring import Plane
from deploy.embedded.redis import RedisServer
from events.values import NodeId, new_uuid
from tasks.scripts import ENQUEUE, FETCH, REQUEUE, QueueKeys
from tests import matrix
from tests.api.node import QUEUE_PASSWORD
from tests.dispatch.given import Given
from tests.dispatch.test_queue_watch import Connect, Enrol, connect, enrol, revocations, state, watch
from tests.queue.redis_protocol import words

__all__ = ["connect", "enrol", "watch"]
KEYS = QueueKeys.of("ctl:n1")
NODES = [f"n{number}" for number in range(1, 9)]
SECONDS = 60


@contextmanager
def pipelined(server: RedisServer, command: bytes, connections: int = 4) -> Iterator[None]:
    """Send the Redis command continuously as the node n1 over several connections, until the context ends."""
    program = [sys.executable, "-m", "tests.queue.pipelining_node"]
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


async def look_until(watch: QueueWatch, condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"condition not met within {SECONDS} s: {what}"
        await watch.look()
        await asyncio.sleep(0.05)


HOSTILE = {
    "ping": words("PING"),
    "hget": words("HGET", KEYS.messages, "nothing"),
    "a script": words("EVALSHA", FETCH.sha, 5, *KEYS.all(), "worker", 4),
    "a long script": words("EVALSHA", REQUEUE.sha, 5, *KEYS.all(), "worker", *["x"] * 1000),
    "a script of the control plane": words("EVALSHA", ENQUEUE.sha, 5, *KEYS.all(), 256, 15000, "x", "x"),
    "a refused command": words("LREM", KEYS.waiting, 0, "x"),
    "refused keys": b"".join(words("HGET", f"ctl:n2:{number}", "x") for number in range(1000)),
}


@matrix.cases("P20", [*HOSTILE], few=1)
async def test_node_that_pipelines_redis_commands_continuously_is_revoked_and_other_nodes_are_not(
    watch: QueueWatch, enrol: Enrol, given: Given, redis_server: RedisServer, case: str
) -> None:
    for name in NODES:
        await enrol(name)
    await watch.look()
    with pipelined(redis_server, HOSTILE[case]):
        await look_until(watch, lambda: state(given, "n1")[0] == "revoked", "n1 is revoked")
    assert [reason.split(":")[0] for reason, _ in revocations(given)] == ["queue_flooded"]
    assert {state(given, name)[0] for name in NODES[1:]} == {"enrolled"}


async def test_node_that_fetches_orders_as_fast_as_possible_is_not_revoked(
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
    """Return the number of CONFIG commands that Redis has received. Each sample of the queue times begins and ends with
    such commands.
    """
    stats_by_command = admin.info("commandstats")
    return sum(
        int(stats["calls"]) for name, stats in stats_by_command.items() if name.startswith("cmdstat_config")
    )


async def test_slow_log_settings_of_redis_are_restored_after_a_sample_of_queue_times(
    watch: QueueWatch, enrol: Enrol, redis_server: RedisServer, admin: redis.Redis, given: Given
) -> None:
    await enrol("n1")
    admin.config_set("slowlog-log-slower-than", 12_345)
    await watch.look()
    # One CONFIG command of this test and those of the sample.
    before = samples(admin) + 4
    with pipelined(redis_server, words("PING"), connections=1):
        await look_until(watch, lambda: samples(admin) >= before, "a sample is taken")
    assert admin.config_get("slowlog-*") == {
        "slowlog-log-slower-than": "12345",
        "slowlog-max-len": "128",
    }
    assert state(given, "n1") == ("enrolled", None), "a node that floods for one second must not be revoked"


def entry(usec: int, *command: bytes, address: bytes = b"127.0.0.1:1") -> list[Any]:
    return [1, 1, usec, [*command], address, b""]


def test_slow_redis_command_is_attributed_to_the_node_of_its_key_or_of_its_connection() -> None:
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


def test_failed_redis_authentication_is_not_counted_against_the_node_that_it_names() -> None:
    def denied(reason: bytes, count: int) -> dict[bytes, Any]:
        return {b"username": b"node-a", b"reason": reason, b"count": count}

    assert denied_of([denied(b"auth", 5000), denied(b"command", 3), denied(b"key", 4)]) == {"a": 7}
    assert FLOOD_SECONDS >= 1
