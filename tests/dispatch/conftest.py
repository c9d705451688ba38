"""Fixtures of the dispatcher's tests: parts of the dispatcher on a separate database and Redis, without a process that
follows the ledger.
"""

from collections.abc import AsyncIterator, Iterator

import pytest
import redis
from joserfc.jwk import OKPKey

from control_plane.dispatcher.task_sender import TaskSender
from control_plane.queues.redis_nodes import ensure_scripts
from control_plane.queues.relay import Relay
from control_plane.wiring import Plane, plane
from deploy.embedded import redis as embedded
from tasks.sealed import seal
from tasks.signing import Signer
from tests.dispatch.given import Given
from tests.servers.plane import settings_for
from tests.servers.postgres import Database
from tests.servers.redis import server_folder


@pytest.fixture
def redis_server() -> Iterator[embedded.RedisServer]:
    with server_folder() as folder, embedded.running_redis(folder) as server:
        yield server


@pytest.fixture
def admin(redis_server: embedded.RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as client:
        yield client


@pytest.fixture
async def made(database: Database, redis_server: embedded.RedisServer) -> AsyncIterator[Plane]:
    async with plane(settings_for(database, redis_server.url, 1, redis_server.port)) as made:
        await ensure_scripts(made.redis)
        yield made


@pytest.fixture
def signer() -> Signer:
    return Signer(OKPKey.generate_key("Ed25519"))


@pytest.fixture
def task_sender(made: Plane, signer: Signer) -> TaskSender:
    return TaskSender(
        made.engine,
        made.redis,
        Relay(made.redis),
        lambda text, until, head: seal(signer, text, until, head),
        made.settings.unreachable_after,
    )


@pytest.fixture
def given(made: Plane, database: Database) -> Given:
    return Given(made, database)
