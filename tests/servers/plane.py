"""Control plane for tests: the real API, dispatcher, projector and sealer on a separate database and Redis.

`running` runs these programs in one thread of this process, which starts fast. `stack` in `deploy.embedded` runs them
as processes that can be killed.
"""

import asyncio
import contextlib
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import uvloop
from pydantic import SecretStr

from control_plane.api.server import serve
from control_plane.commands.access import issue_first_key
from control_plane.dispatcher.dispatcher_program import run_dispatcher
from control_plane.projector.program import run_projector
from control_plane.sealer.program import run_sealer
from control_plane.settings import SealerSettings, Settings
from control_plane.wiring import Plane, configure_logs, plane
from deploy.embedded import redis as embedded_redis
from deploy.embedded.postgres import PostgresServer
from deploy.embedded.signing_key import ensure_sealing_key, ensure_signing_key, public_file
from deploy.embedded.stack import sqlalchemy_url
from tests.servers.postgres import Database, cloned
from tests.servers.redis import server_folder
from tests.servers.statements import Statements
from tests.waiting import until

ADMIN_KEY = "sp_test-admin"
TLS_CONTEXT: Final = httpx.create_ssl_context()
"""The context of all clients. A client without one loads the trusted certificates again, which takes 20 ms."""
EVENTS_OF_THE_LAB: Final = ("sku.published", "sku.published", "image.published")
"""Types of the first events of a ledger with the catalogue of the lab."""


def http_client(url: str, **options: Any) -> httpx.Client:
    """Return an HTTP client that closes its connections when it is deleted.

    If the garbage collector closes an open socket, Python emits a warning. While Hypothesis temporarily turns warnings
    into errors, this warning would fail an unrelated test.
    """
    transport = httpx.HTTPTransport(verify=TLS_CONTEXT)
    client = httpx.Client(base_url=url, timeout=20, transport=transport, **options)
    weakref.finalize(client, transport.close)
    return client


@dataclass(frozen=True)
class RunningPlane:
    """Running control plane of a test. The test may flush and kill `redis`, because no other test uses this server.

    `sealing` are the settings of its sealer.
    """

    url: str
    settings: Settings
    sealing: SealerSettings
    database: Database
    redis: embedded_redis.RedisServer
    statements: Statements

    def client(self, **headers: str) -> httpx.Client:
        """Return an HTTP client of the API, with the API key of an admin."""
        return http_client(f"{self.url}/v1", headers={"Authorization": f"Bearer {ADMIN_KEY}", **headers})

    def document(self) -> dict[str, Any]:
        """Return the OpenAPI document. The API makes it at the first request: that takes seconds on a busy machine."""
        answer = httpx.get(f"{self.url}/openapi.json", timeout=20, verify=TLS_CONTEXT)
        return dict(answer.json())

    def rows(self, query: str, **values: object) -> list[tuple[Any, ...]]:
        """Run an SQL query as the database's superuser and return its rows. `values` fill `%(name)s` in the query."""
        return self.statements.rows(query, values)

    def last_position(self) -> int:
        """Return the position of the newest event in the ledger."""
        [(position,)] = self.rows("select max(position) from ledger.event")
        return int(position)

    def has_lock_waiter(self) -> bool:
        """Return whether a statement on the database server waits for a lock of another transaction."""
        return bool(self.rows("select 1 from pg_stat_activity where wait_event_type = 'Lock'"))


def settings_for(
    database: Database, redis_url: str, port: int, queue_port: int, signing_key: Path | None = None
) -> Settings:
    return Settings(
        database_url=database_url(database.app_dsn),
        redis_url=redis_url,
        listen=f"127.0.0.1:{port}",
        queue_port=queue_port,
        signing_key_file=signing_key,
        deadline_grace_seconds=0.0,
        place_on_simulated_nodes=True,
        terminal_address="wss://gateway.example.com:2280",
        log="console",
    )


def database_url(dsn: str) -> SecretStr:
    """Return a libpq connection string in the form of the setting `database_url`."""
    return SecretStr(sqlalchemy_url(dsn).render_as_string(hide_password=False))


def sealer_settings(database: Database, folder: Path) -> SealerSettings:
    """Return the settings of the sealer: its database role, its key, and a file in `folder` for its heads."""
    return SealerSettings(
        database_url=database_url(database.sealer_dsn),
        sealing_key_file=ensure_sealing_key(folder / "sealing-key.pem"),
        heads_file=folder / "heads.jws",
        log="console",
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(server: PostgresServer, **changes: object) -> Iterator[RunningPlane]:
    """Run a control plane on a new database of the session's PostgreSQL server and on a new Redis. `changes` override
    its default settings.
    """
    configure_logs("console")
    with (
        cloned(server, catalogue=True) as database,
        server_folder() as folder,
        embedded_redis.running_redis(folder) as redis,
    ):
        key = ensure_signing_key(folder.parent / "signing-key.pem")
        defaults = settings_for(database, redis.url, free_port(), redis.port, key)
        public = public_file(ensure_sealing_key(folder / "sealing-key.pem"))
        settings = defaults.model_copy(update={"sealing_public_keys_file": public, **changes})
        sealing = sealer_settings(database, folder)
        with (
            _in_a_thread(settings, sealing),
            contextlib.closing(Statements(database.admin_dsn)) as statements,
        ):
            made = RunningPlane(f"http://{settings.listen}", settings, sealing, database, redis, statements)
            with made.client() as client:
                until(lambda: _answers(client), "the API answers")
            yield made


@pytest.fixture
def running_plane(postgres_server: PostgresServer) -> Iterator[RunningPlane]:
    """Control plane for one test, which may change or stop it."""
    with running(postgres_server) as made:
        yield made


@pytest.fixture(scope="module")
def shared_plane(postgres_server: PostgresServer) -> Iterator[RunningPlane]:
    """Control plane that the tests of one module share. Each test leaves a state that the others accept."""
    with running(postgres_server) as made:
        yield made


def _answers(client: httpx.Client) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return client.get("/skus").status_code == httpx.codes.OK
    return False


@contextlib.contextmanager
def _in_a_thread(settings: Settings, sealing: SealerSettings) -> Iterator[None]:
    stop: list[Callable[[], None]] = []
    thread = threading.Thread(target=lambda: uvloop.run(_programs(settings, sealing, stop)))
    thread.start()
    try:
        yield
    finally:
        until(lambda: bool(stop), "the programs run")
        stop[0]()
        thread.join(20)
        assert not thread.is_alive(), "the control plane did not stop"


async def _programs(settings: Settings, sealing: SealerSettings, stop: list[Callable[[], None]]) -> None:
    loop, me = asyncio.get_running_loop(), asyncio.current_task()
    assert me is not None
    with contextlib.suppress(asyncio.CancelledError):
        async with plane(settings) as made:
            await made.handle(issue_first_key("test", sha256(ADMIN_KEY.encode()).hexdigest()))
            stop.append(lambda: _cancel(loop, me))
            await _together(made, sealing)


def _cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
    loop.call_soon_threadsafe(task.cancel)


async def _together(made: Plane, sealing: SealerSettings) -> None:
    async with asyncio.TaskGroup() as group:
        for program in (serve, run_dispatcher, run_projector):
            group.create_task(program(made))
        group.create_task(run_sealer(sealing))
