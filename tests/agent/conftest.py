"""Fixtures: a fake control plane, its queue, and the settings, spool and reporter of one agent."""

import hashlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from control_plane.queues import redis_nodes
from deploy.embedded.redis import RedisServer
from node_agent.lab.lab import Lab
from node_agent.runtime.clock import NodeClock
from node_agent.runtime.timetable import Timetable
from node_agent.settings import Settings
from node_agent.transport.client import ControlPlane
from node_agent.transport.reporter import Reporter
from node_agent.transport.spool import Spool
from tasks.agent_api import EnrolmentClaims, Queue
from tests.agent.control_plane import TOKEN, FakeControlPlane, serving
from tests.agent.credential_client import client_of
from tests.agent.orders import NODE
from tests.agent.queue import create_session_users
from tests.servers.lab import kept_folder, run_id

CREDENTIAL = "the-nodes-own-credential"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Lab with one node for all tests of a module. Objects that an agent creates once per node remain between tests."""
    with Lab(run_id(), tmp_path_factory.mktemp("lab"), [NODE], kept_folder() / "libvirt") as lab:
        yield lab


@pytest.fixture
def plane() -> FakeControlPlane:
    return FakeControlPlane()


@pytest.fixture
def url(plane: FakeControlPlane) -> Iterator[str]:
    with serving(plane) as address:
        yield address


@pytest.fixture
def enrolled_plane(plane: FakeControlPlane) -> FakeControlPlane:
    """Fake control plane in which node `lab-a` has a session with the credential CREDENTIAL."""
    digest = hashlib.sha256(CREDENTIAL.encode()).hexdigest()
    plane.session = EnrolmentClaims(
        node_id=NODE,
        token_sha256=digest,
        credential_sha256=digest,
        queue_password_sha256=digest,
        agent_version="test",
    )
    return plane


@pytest.fixture
def client(enrolled_plane: FakeControlPlane, url: str) -> Iterator[ControlPlane]:
    client = client_of(url, CREDENTIAL)
    yield client
    client.close()


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path / "spool")


@pytest.fixture
def timetable() -> Iterator[Timetable]:
    with Timetable() as timetable:
        yield timetable


@pytest.fixture
def reporter(spool: Spool) -> Iterator[Reporter]:
    reporter = Reporter(spool, NodeClock())
    yield reporter
    reporter.stop(5)


@pytest.fixture
def deliver(client: ControlPlane, timetable: Timetable) -> Callable[[Reporter], None]:
    """Return a function that starts a reporter, which delivers the reports of its spool to the fake control plane."""
    return lambda reporter: reporter.start(client, timetable)


@pytest.fixture
def settings(tmp_path: Path, url: str) -> Settings:
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    return Settings.model_validate(
        {
            "node_id": NODE,
            "api_url": url,
            "enrolment_token_file": token,
            "state_folder": tmp_path / "state",
            "run_folder": tmp_path / "run",
            "images_folder": tmp_path / "images",
            "slots": [{"index": 0, "vcpus": 1, "memory_mib": 96}, {"index": 1, "vcpus": 1, "memory_mib": 96}],
            "survey_seconds": 0.1,
            "heartbeat_seconds": 0.1,
        }
    )


@pytest.fixture
async def control(redis_server: RedisServer, plane: FakeControlPlane) -> AsyncIterator[Redis]:
    """The control plane's connection to the Redis of the task queue; enrolment creates the Redis user of the node."""
    plane.queue = Queue(
        host=redis_server.address, port=redis_server.port, username=f"node-{NODE}", namespace=f"ctl:{NODE}"
    )
    plane.on_session = create_session_users(redis_server.url)
    client = Redis.from_url(redis_server.url)
    await redis_nodes.ensure_scripts(client)
    yield client
    # First: an agent may outlive this fixture. It could write to the queue during the deletion, or renew its session,
    # which would create its Redis user again.
    plane.on_session = lambda _login: None
    await redis_nodes.delete_node_users(client, [NODE])
    await redis_nodes.forget_queues(client, [NODE])
    await client.aclose()
