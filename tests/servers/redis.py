"""Real Redis servers for tests: one a session for whoever shares, one of its own for whoever kills it."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from redis.asyncio import Redis

from control_plane.redis_nodes import answers
from deploy.embedded import redis as embedded
from events.values import NodeId
from tasks.scripts import QueueKeys, namespace_of
from tests.plugins.requirements import missing_server


class Depth(NamedTuple):
    """How many orders a node's queue has."""

    waiting: int
    in_flight: int


async def queue_depth(client: Redis, node_id: NodeId) -> Depth:
    """Asked as the control plane."""
    keys = QueueKeys.of(namespace_of(node_id))
    return Depth(*await answers(client, [("LLEN", keys.waiting), ("HLEN", keys.held)]))


@contextmanager
def server_folder() -> Iterator[Path]:
    """A folder with a short name, under a parent that the server's user may enter (pytest's own are closed)."""
    parent = Path(tempfile.mkdtemp(prefix="sp-redis-"))
    parent.chmod(0o711)
    try:
        yield parent / "redis"
    finally:
        shutil.rmtree(parent)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[embedded.RedisServer]:
    """Shared by the session: keep to node ids of your own, and never flush it."""
    try:
        program = embedded.find_server()
    except embedded.RedisNotFound as missing:
        missing_server(str(missing))
    with server_folder() as folder, embedded.running_redis(folder, server=program) as server:
        yield server
