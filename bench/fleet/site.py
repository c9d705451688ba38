"""Control plane for benchmarks of a fleet, run as in a deployment: real servers, and two processes of each program.

TLS is off, as in the other benchmarks. Nodes alternate between the two API processes, the dispatchers share the work,
and one projector leads. Each control plane starts with the catalogue of the lab and without nodes, and has all its data
in one folder.
"""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

import httpx
from pydantic import SecretStr
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from bench.harness.processes import Usage, cpu, usage_of
from bench.harness.servers import NO_REQUEST_LIMITS, migrated_postgres, signing_key, sqlalchemy_url
from control_plane.commands.access import issue_first_key
from control_plane.programs import SERVER, Program
from control_plane.settings import Settings
from control_plane.wiring import plane
from deploy.embedded import redis as embedded_redis
from deploy.embedded.children import Child, installed_program
from deploy.embedded.lab_catalogue import publish_lab_catalogue
from deploy.embedded.postgres import PostgresServer
from deploy.embedded.redis import RedisServer
from deploy.embedded.stack import await_api
from deploy.embedded.stack import sqlalchemy_url as url_of_dsn

REPLICAS: Final = 2
REDIS_MEMORY: Final = "2gb"
"""Memory limit of Redis, which includes its thousands of connections and users."""
KEY: Final = "sp_bench-of-the-fleet"


class ProgramEnded(Exception):
    """A program of the control plane exited; the message includes the end of its log."""


@dataclass(frozen=True, slots=True)
class FleetSite:
    """A running control plane. `children` are the processes of its programs by name (`api`, `api-2`, ...), and `apis`
    the URLs of the API processes.
    """

    postgres: PostgresServer
    redis: RedisServer
    apis: Sequence[str]
    children: Mapping[str, Child]

    def clients(self) -> list[httpx.AsyncClient]:
        """Return one HTTP client with an admin key for each API process."""
        headers, trusted = {"Authorization": f"Bearer {KEY}"}, httpx.create_ssl_context()
        return [
            httpx.AsyncClient(base_url=f"{url}/v1", headers=headers, timeout=60, verify=trusted)
            for url in self.apis
        ]

    @asynccontextmanager
    async def database(self) -> AsyncIterator[AsyncConnection]:
        """Connect to the database with the role of the application, to read its tables."""
        engine = create_async_engine(sqlalchemy_url(self.postgres))
        try:
            async with engine.connect() as conn:
                yield conn
        finally:
            await engine.dispose()

    def cpu(self) -> dict[str, float]:
        """Return the processor time in seconds that each program has used so far, summed over its processes."""
        return _by_program({name: cpu(pid) for name, pid in self._pids().items()})

    def memory(self) -> dict[str, float]:
        """Return the memory that each program uses, in bytes, summed over its processes."""
        found: dict[str, Usage] = {name: usage_of(pid) for name, pid in self._pids().items()}
        return _by_program({name: each.memory for name, each in found.items()})

    def check_programs_run(self) -> None:
        """Check that every process of the control plane runs. Raises `ProgramEnded`."""
        for name, child in self.children.items():
            if child.status is not None:
                raise ProgramEnded(
                    f"{name} exited with status {child.status}; the end of its log:\n{child.log.read_text()[-2000:]}"
                )

    def _pids(self) -> dict[str, int]:
        assert self.postgres.process is not None, "the site's Postgres server is not running"
        programs = {name: child.pid for name, child in self.children.items() if child.pid is not None}
        return {**programs, "postgres": self.postgres.process.pid, "redis": self.redis.process.pid}


def _by_program(found: Mapping[str, float]) -> dict[str, float]:
    added: dict[str, float] = {}
    for name, number in found.items():
        program = name.partition("-")[0]
        added[program] = added.get(program, 0.0) + number
    return added


@asynccontextmanager
async def site(folder: Path, settings: Mapping[str, str]) -> AsyncIterator[FleetSite]:
    """Run a control plane in an empty folder; `settings` are additional `SLICEPLANE_*` settings of its programs."""
    async with AsyncExitStack() as opened:
        postgres = opened.enter_context(migrated_postgres(folder))
        await asyncio.to_thread(publish_lab_catalogue, make_url(sqlalchemy_url(postgres)))
        redis = opened.enter_context(_redis(folder / "redis"))
        await _issue_key(postgres, redis)
        ports = [_free_port() for _ in range(REPLICAS)]
        environment = {
            "SLICEPLANE_DATABASE_URL": sqlalchemy_url(postgres),
            "SLICEPLANE_REDIS_URL": redis.url,
            "SLICEPLANE_QUEUE_PORT": str(redis.port),
            "SLICEPLANE_SIGNING_KEY_FILE": str(signing_key(folder)[0]),
            "SLICEPLANE_PLACE_ON_SIMULATED_NODES": "true",
            # One key stands for all callers of the fleet.
            **NO_REQUEST_LIMITS,
            **settings,
        }
        sealer_url = url_of_dsn(postgres.sealer_dsn).render_as_string(hide_password=False)
        sealing = {
            "SLICEPLANE_DATABASE_URL": sealer_url,
            "SLICEPLANE_SEALING_KEY_FILE": environment["SLICEPLANE_SIGNING_KEY_FILE"],
        }
        children = opened.enter_context(_programs(folder, environment, sealing, ports))
        apis = [f"http://127.0.0.1:{port}" for port in ports]
        made = FleetSite(postgres, redis, apis, children)
        for api in apis:
            await_api(api, httpx.create_ssl_context(), folder, made.check_programs_run)
        yield made


@contextmanager
def _redis(folder: Path) -> Iterator[RedisServer]:
    server = embedded_redis.start(folder, maxmemory=REDIS_MEMORY)
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def _programs(
    folder: Path, environment: Mapping[str, str], sealing: Mapping[str, str], ports: Sequence[int]
) -> Iterator[dict[str, Child]]:
    """Run each program of the control plane, except the SSH gateway, once for each port until the context ends. Yield
    the processes by name (`api`, `api-2`, ...).

    `environment` has the settings of all programs except the sealer, and `sealing` those of the sealer.
    """
    started: dict[str, Child] = {}
    try:
        # No benchmark connects to slices.
        for program in (each for each in Program if each is not Program.SSH_GATEWAY):
            for number, port in enumerate(ports, 1):
                name = program.value if number == 1 else f"{program}-{number}"
                own = {**environment, "SLICEPLANE_LISTEN": f"127.0.0.1:{port}"}
                if program is Program.SEALER:
                    own = dict(sealing)
                child = Child(name, installed_program(SERVER, program), folder / f"{name}.log", own)
                started[name] = child
                child.start()
        yield started
    finally:
        for child in started.values():
            child.send(signal.SIGTERM)
        for child in started.values():
            child.stop()


async def _issue_key(postgres: PostgresServer, redis: RedisServer) -> None:
    settings = Settings(database_url=SecretStr(sqlalchemy_url(postgres)), redis_url=SecretStr(redis.url))
    async with plane(settings, pool=1) as made:
        await made.handle(issue_first_key("bench", sha256(KEY.encode()).hexdigest()))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
