"""Real Redis servers for tests: tests share one per session, and a test that kills a server starts its own."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import redis
from redis.asyncio import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from control_plane.queues.redis_nodes import answers
from deploy.embedded import redis as embedded
from events.values import NodeId
from tasks.scripts import QueueKeys, namespace_of
from tests.plugins.requirements import missing_server


class Depth(NamedTuple):
    """Number of waiting orders and number of orders in flight in a node's queue."""

    waiting: int
    in_flight: int


async def queue_depth(client: Redis, node_id: NodeId) -> Depth:
    """Return the depth of a node's queue, read with the rights of the control plane."""
    keys = QueueKeys.of(namespace_of(node_id))
    return Depth(*await answers(client, [("LLEN", keys.waiting), ("HLEN", keys.held)]))


def connect_as_node(port: int, node: str, password: str) -> redis.Redis:
    """Return a client with the Redis user of a node. After a closed connection it connects once again, without the
    pauses of seconds that the Redis client makes by default, also before it reports a refused password.
    """
    return redis.Redis(
        "127.0.0.1", port, username=f"node-{node}", password=password, retry=Retry(NoBackoff(), 1)
    )


@contextmanager
def server_folder() -> Iterator[Path]:
    """Yield a short path below a new temporary folder that the user of the Redis server may enter. This user may not
    enter the temporary folders of pytest.
    """
    parent = Path(tempfile.mkdtemp(prefix="sp-redis-"))
    parent.chmod(0o711)
    try:
        yield parent / "redis"
    finally:
        shutil.rmtree(parent)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[embedded.RedisServer]:
    """Redis server of the test session. A test uses its own node ids and never flushes this server."""
    try:
        program = embedded.find_server()
    except embedded.RedisNotFound as missing:
        missing_server(str(missing))
    with server_folder() as folder, embedded.running_redis(folder, server=program) as server:
        yield server
