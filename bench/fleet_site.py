"""The control plane of the fleet, as deployed: real servers, and of each program two processes.

TLS is off, as in the other benches. Nodes find one API or the other; the dispatchers share the work, of the projectors
one leads. Everything begins new, and ends with the site.
"""

import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

import httpx
from pydantic import SecretStr
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from bench.processes import Spent, cpu, spent
from bench.servers import migrated_postgres, signing_key, sqlalchemy_url
from control_plane.commands.access import issue_key
from control_plane.settings import Settings
from control_plane.wiring import plane
from deploy.embedded import redis as embedded_redis
from deploy.embedded.children import Child, python_module
from deploy.embedded.postgres import PostgresServer
from deploy.embedded.redis import RedisServer

REPLICAS: Final = 2
PROGRAMS: Final = ("api", "dispatcher", "projector")
READY_SECONDS: Final = 60.0
REDIS_MEMORY: Final = "2gb"
"""Thousands of connections and users of Redis count as its memory."""
KEY: Final = "sp_bench-of-the-fleet"


class ProgramEnded(Exception):
    """A program of the control plane ended or did not begin; its log says why."""


@dataclass(frozen=True, slots=True)
class Site:
    """`children` are the programs by name (`api`, `api-2`, ...), `apis` their addresses."""

    postgres: PostgresServer
    redis: RedisServer
    apis: Sequence[str]
    children: Mapping[str, Child]

    def clients(self) -> list[httpx.AsyncClient]:
        """An admin's, one for each API."""
        headers = {"Authorization": f"Bearer {KEY}"}
        return [httpx.AsyncClient(base_url=f"{url}/v1", headers=headers, timeout=60) for url in self.apis]

    @asynccontextmanager
    async def database(self) -> AsyncIterator[AsyncConnection]:
        """A look at everything, as the application's role."""
        engine = create_async_engine(sqlalchemy_url(self.postgres))
        try:
            async with engine.connect() as conn:
                yield conn
        finally:
            await engine.dispose()

    def cpu(self) -> dict[str, float]:
        """Seconds on processors so far, by program; all processes of one program together."""
        return _by_program({name: cpu(pid) for name, pid in self._pids().items()})

    def memory(self) -> dict[str, float]:
        """Bytes now, likewise."""
        found: dict[str, Spent] = {name: spent(pid) for name, pid in self._pids().items()}
        return _by_program({name: each.memory for name, each in found.items()})

    def see_to_it(self) -> None:
        """Raises `ProgramEnded` unless every program runs."""
        for name, child in self.children.items():
            if child.status is not None:
                raise ProgramEnded(
                    f"{name} ended with status {child.status}: {child.log.read_text()[-2000:]}"
                )

    def _pids(self) -> dict[str, int]:
        assert self.postgres.process is not None, "the site is up"
        programs = {name: child.pid for name, child in self.children.items() if child.pid is not None}
        return {**programs, "postgres": self.postgres.process.pid, "redis": self.redis.process.pid}


def _by_program(found: Mapping[str, float]) -> dict[str, float]:
    added: dict[str, float] = {}
    for name, number in found.items():
        program = name.partition("-")[0]
        added[program] = added.get(program, 0.0) + number
    return added


@asynccontextmanager
async def site(folder: Path, told: Mapping[str, str]) -> AsyncIterator[Site]:
    """In an empty folder; `told` are further settings of the programs (`SLICEPLANE_*`)."""
    async with AsyncExitStack() as opened:
        postgres = opened.enter_context(migrated_postgres(folder))
        redis = opened.enter_context(_redis(folder / "redis"))
        await _issue_key(postgres, redis)
        ports = [_free_port() for _ in range(REPLICAS)]
        environment = {
            "SLICEPLANE_DATABASE_URL": sqlalchemy_url(postgres),
            "SLICEPLANE_REDIS_URL": redis.url,
            "SLICEPLANE_QUEUE_PORT": str(redis.port),
            "SLICEPLANE_SIGNING_KEY_FILE": str(signing_key(folder)[0]),
            "SLICEPLANE_PLACE_ON_SIMULATED_NODES": "true",
            **told,
        }
        children = opened.enter_context(_programs(folder, environment, ports))
        apis = [f"http://127.0.0.1:{port}" for port in ports]
        made = Site(postgres, redis, apis, children)
        _await_answers(made)
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
    folder: Path, environment: Mapping[str, str], ports: Sequence[int]
) -> Iterator[dict[str, Child]]:
    started: dict[str, Child] = {}
    try:
        for program in PROGRAMS:
            for number, port in enumerate(ports, 1):
                name = program if number == 1 else f"{program}-{number}"
                own = {**environment, "SLICEPLANE_LISTEN": f"127.0.0.1:{port}"}
                child = Child(name, python_module("control_plane", program), folder / f"{name}.log", own)
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
        await made.handle(issue_key("bench", "admin", sha256(KEY.encode()).hexdigest()))


def _await_answers(made: Site) -> None:
    deadline = time.monotonic() + READY_SECONDS
    for url in made.apis:
        while True:
            made.see_to_it()
            try:
                httpx.get(f"{url}/readyz/postgres", timeout=2).raise_for_status()
                break
            except httpx.TransportError:
                if time.monotonic() > deadline:
                    raise ProgramEnded(f"{url} did not answer") from None
                time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
