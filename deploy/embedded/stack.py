"""The control plane on one machine: Postgres, Redis, API, dispatcher, projector and sealer, started in this order.

A server or program that exits is restarted on its data, with growing pauses, as long as the stack runs; meanwhile its
clients retry. Only a failed first start ends the stack. API and Redis use TLS with certificates of a CA in the state
folder. A Redis that was built without TLS listens on loopback only.
"""

import contextlib
import json
import os
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import httpx
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.engine import URL

from control_plane.programs import SERVER, Program
from control_plane.schema import MigrationFailed, migrate
from deploy.embedded import certificates
from deploy.embedded import redis as embedded_redis
from deploy.embedded.children import REPOSITORY, Child, installed_program
from deploy.embedded.lab_catalogue import publish_lab_catalogue
from deploy.embedded.layout import Layout, default_state, write_private
from deploy.embedded.postgres import PostgresServer
from deploy.embedded.postgres_cluster import PostgresUnavailable
from deploy.embedded.restarts import Restarts
from deploy.embedded.signing_key import (
    ensure_personal_key,
    ensure_sealing_key,
    ensure_signing_key,
    public_file,
)
from deploy.embedded.ssh_key import ensure_key_pair
from events.ledger.personal import MasterKey
from events.ledger.project_keys import use_master_key
from tasks.trust import trust

READY_SECONDS: Final = 30.0
API_PORT: Final = 8080
ShowLine = Callable[[str], None]


class StackFailed(Exception):
    """A part of the control plane did not start; the message names the part and its log."""


class Stack:
    """Control plane on this machine. `start` starts it on loopback and `addresses`, `stop` ends it, and `supervise`
    restarts each server or program that exits.

    Each program runs `replicas` times, named `api`, `api-2`, ...; each API has its own port. `namespaces` is written
    into the client file, for `sliceplane ssh`. If `simulated_nodes` is true, slices are placed on simulated nodes.
    Each API has `api_workers` worker processes.

    `prepare` is called after the migration of the database and before any program starts, with the connection strings
    of the superuser and of the application. `further` are environment variables of the programs.
    """

    def __init__(
        self,
        layout: Layout,
        addresses: Sequence[str],
        show: ShowLine,
        *,
        replicas: int = 1,
        namespaces: Mapping[str, Mapping[str, str]] | None = None,
        simulated_nodes: bool = False,
        api_workers: int = 1,
        prepare: Callable[[str, URL], None] | None = None,
        further: Mapping[str, str] | None = None,
    ) -> None:
        self._layout, self._show, self._namespaces = layout, show, namespaces or {}
        self._simulated_nodes, self._api_workers = simulated_nodes, api_workers
        self._prepare, self._further = prepare, further or {}
        self._addresses = ("127.0.0.1", *addresses)
        self._apis = replicas_of("api", replicas)
        self._replicas = replicas
        self._gateways = replicas_of(Program.SSH_GATEWAY, replicas)
        self._ports = _ports(layout, (*self._apis, *self._gateways, *map(_terminals_of, self._gateways)))
        self._postgres = PostgresServer(layout.database, layout.run / "postgres")
        self.certificates = certificates.ensure(layout.certificates, self._addresses, datetime.now(UTC))
        self.trusted = trust(self.certificates.ca.read_text())
        self._redis: embedded_redis.RedisServer | None = None
        self.programs: dict[str, Child] = {}
        self._restarts = {"PostgreSQL": Restarts(), "Redis": Restarts()}
        self._open = contextlib.ExitStack()

    @property
    def queue_address(self) -> str:
        """Address at which nodes reach the API and Redis."""
        return self._addresses[-1]

    @property
    def api_url(self) -> str:
        return f"https://127.0.0.1:{self._ports['api']}"

    @property
    def api_urls(self) -> tuple[str, ...]:
        """URLs of all API replicas."""
        return tuple(f"https://127.0.0.1:{self._ports[name]}" for name in self._apis)

    @property
    def node_api_url(self) -> str:
        return f"https://{self.queue_address}:{self._ports['api']}"

    @property
    def ssh_gateway(self) -> str:
        """Address (HOST:PORT) at which the SSH gateway of this control plane accepts callers."""
        return f"127.0.0.1:{self._ports[self._gateways[0]]}"

    @property
    def redis_url(self) -> str:
        assert self._redis is not None, "Redis is not started; call start() first"
        return self._redis.url

    @property
    def admin_dsn(self) -> str:
        """Connection string of the database's superuser, with which tests inspect the database."""
        return self._postgres.admin_dsn

    @property
    def servers(self) -> dict[str, int]:
        """Process ids of the servers that were started: the first Postgres process, and Redis."""
        redis = None if self._redis is None else self._redis.process
        found = {"postgres": self._postgres.process, "redis": redis}
        return {name: process.pid for name, process in found.items() if process is not None}

    def start(self) -> None:
        """Start all servers and programs of the control plane, and wait until every API is ready.

        Raises `StackFailed`, `PostgresUnavailable`, `RedisNotFound` or `RedisDidNotStart`.
        """
        self._open.callback(self._postgres.stop)
        self._postgres.start()
        try:
            migrate(self._postgres.admin_dsn)
        except MigrationFailed as failed:
            raise StackFailed(f"the database cannot be migrated: {failed}") from failed
        if self._prepare is not None:
            use_master_key(MasterKey.of_file(ensure_personal_key(self._layout.personal_key)))
            self._prepare(self._postgres.admin_dsn, sqlalchemy_url(self._postgres.app_dsn))
        publish_lab_catalogue(sqlalchemy_url(self._postgres.app_dsn))
        self._start_redis()
        for program in Program:
            for name, api in zip(replicas_of(program, self._replicas), self._apis, strict=True):
                child = Child(
                    name,
                    installed_program(SERVER, program),
                    self._layout.logs / f"{name}.log",
                    self.environment(api) if program is not Program.SEALER else self.sealer_environment(),
                )
                self._open.callback(child.stop)
                child.start()
                self.programs[name] = child
        for url in self.api_urls:
            await_api(url, self.trusted, self._layout.logs, self.supervise)

    def stop(self) -> None:
        self._open.close()

    def supervise(self) -> None:
        """Restart every process that has exited. A failed restart is retried after a pause."""
        if self._postgres.process is None or self._postgres.process.poll() is not None:
            self._restart("PostgreSQL", self._postgres.launch)
        if self._redis is not None and self._redis.process.poll() is not None:
            self._restart("Redis", self._start_redis)
        for child in self.programs.values():
            child.supervise(self._show)

    def _restart(self, server: str, start: Callable[[], None]) -> None:
        restarts = self._restarts[server]
        if not restarts.is_due():
            return
        restarts.counted()
        self._show(f"{server} exited and is restarted")
        try:
            start()
        except (PostgresUnavailable, embedded_redis.RedisDidNotStart, OSError) as error:
            self._show(f"{server} did not start; next attempt in {restarts.pause_seconds:g} s: {error}")

    def environment(self, api: str = "api") -> dict[str, str]:
        """Return the environment variables of the control plane's programs, with the port of the API replica `api`."""
        database = sqlalchemy_url(self._postgres.app_dsn)
        over_tls = self._redis is not None and self._redis.ca is not None
        gateway = self._gateways[self._apis.index(api)]
        return {
            "SLICEPLANE_DATABASE_URL": database.render_as_string(hide_password=False),
            "SLICEPLANE_REDIS_URL": self.redis_url,
            "SLICEPLANE_SIGNING_KEY_FILE": str(ensure_signing_key(self._layout.signing_key)),
            "SLICEPLANE_PERSONAL_KEY_FILE": str(ensure_personal_key(self._layout.personal_key)),
            "SLICEPLANE_SEALING_PUBLIC_KEYS_FILE": str(
                public_file(ensure_sealing_key(self._layout.sealing_key))
            ),
            "SLICEPLANE_QUEUE_HOST": self.queue_address,
            "SLICEPLANE_QUEUE_PORT": str(self._ports["redis"]),
            "SLICEPLANE_PLACE_ON_SIMULATED_NODES": str(self._simulated_nodes).lower(),
            "SLICEPLANE_API_WORKERS": str(self._api_workers),
            "SLICEPLANE_LISTEN": ",".join(f"{address}:{self._ports[api]}" for address in self._addresses),
            "SLICEPLANE_SSH_GATEWAY_LISTEN": f"127.0.0.1:{self._ports[gateway]}",
            "SLICEPLANE_SSH_GATEWAY_ADDRESS": self.ssh_gateway,
            "SLICEPLANE_SSH_GATEWAY_HOST_KEY": ensure_key_pair(self._layout.ssh_host_key),
            "SLICEPLANE_SSH_GATEWAY_HOST_KEY_FILE": str(self._layout.ssh_host_key),
            "SLICEPLANE_TERMINAL_LISTEN": f"127.0.0.1:{self._ports[_terminals_of(gateway)]}",
            "SLICEPLANE_TERMINAL_ADDRESS": f"wss://127.0.0.1:{self._ports[_terminals_of(self._gateways[0])]}",
            "SLICEPLANE_TLS_CERTIFICATE_FILE": str(self.certificates.server),
            "SLICEPLANE_TLS_KEY_FILE": str(self.certificates.server),
            **({"SLICEPLANE_REDIS_CA_FILE": str(self.certificates.ca)} if over_tls else {}),
            **self._further,
        }

    def sealer_environment(self) -> dict[str, str]:
        """Return the environment variables of the sealer: its database role, its key, and no secret of another
        program.
        """
        database = sqlalchemy_url(self._postgres.sealer_dsn)
        return {
            "SLICEPLANE_DATABASE_URL": database.render_as_string(hide_password=False),
            "SLICEPLANE_SEALING_KEY_FILE": str(ensure_sealing_key(self._layout.sealing_key)),
            "SLICEPLANE_HEADS_FILE": str(self._layout.heads_file),
        }

    def ensure_key(self) -> str:
        """Return a valid admin API key: the one in the client file, or a new one that is written there."""
        path = self._layout.client_file
        if path.exists():
            stored = json.loads(path.read_text())
            if self._accepts(stored["api_key"]):
                self._write_client_file(stored["api_key"])
                return str(stored["api_key"])
        new_key = self._run(SERVER, "issue-key", "admin").strip()
        self._write_client_file(new_key)
        return new_key

    def _write_client_file(self, api_key: str) -> None:
        ca = self.certificates.ca.read_text()
        write_private(
            self._layout.client_file,
            {
                "url": self.api_url,
                "api_key": api_key,
                "ca": ca,
                "identity": str(self._layout.ssh_key),
                "namespaces": self._namespaces,
            },
        )

    def _accepts(self, key: str) -> bool:
        headers = {"Authorization": f"Bearer {key}"}
        response = httpx.get(f"{self.api_url}/v1/skus", headers=headers, timeout=10, verify=self.trusted)
        return response.status_code == httpx.codes.OK

    def _run(self, program: str, *words: str) -> str:
        done = subprocess.run(
            installed_program(program, *words),
            cwd=REPOSITORY,
            env={**os.environ, **self.environment()},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise StackFailed(f"{' '.join((program, *words))} failed:\n{done.stderr.strip()}")
        return done.stdout

    def _start_redis(self) -> None:
        server = embedded_redis.find_server()
        secure = embedded_redis.supports_tls(server)
        if self._redis is None:
            self._open.callback(self._stop_redis)
            if not secure:
                self._show(
                    f"{server} was built without TLS: Redis is unencrypted and listens on loopback only"
                )
        if not secure and len(self._addresses) > 1:
            raise StackFailed(
                f"nodes reach Redis over a network, but {server} was built without TLS: install Debian's redis-server"
            )
        self._redis = embedded_redis.start(
            self._layout.state / "redis",
            bind=self._addresses,
            port=self._ports["redis"],
            server=server,
            certificates=self.certificates if secure else None,
        )

    def _stop_redis(self) -> None:
        if self._redis is not None:
            self._redis.stop()


def await_api(url: str, trusted: ssl.SSLContext, logs: Path, meanwhile: Callable[[], object]) -> None:
    """Wait until the API at `url` can serve requests, and call `meanwhile` between the attempts. Raises `StackFailed`
    after a timeout.
    """
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            response = httpx.get(f"{url}/readyz/postgres", timeout=2, verify=trusted)
            if response.status_code == httpx.codes.OK:
                return
        meanwhile()
        time.sleep(0.05)
    raise StackFailed(f"the API at {url} was not ready within {READY_SECONDS:.0f} s; see the logs in {logs}")


def sqlalchemy_url(dsn: str) -> URL:
    """Convert a libpq connection string into an SQLAlchemy URL."""
    options = {name: str(value) for name, value in conninfo_to_dict(dsn).items()}
    return URL.create(
        "postgresql+psycopg",
        username=options["user"],
        password=options["password"],
        database=options["dbname"],
        query={"host": options["host"], "port": options["port"]},
    )


def replicas_of(program: str, count: int) -> tuple[str, ...]:
    """Return the names of a program's replicas."""
    return (program, *(f"{program}-{number}" for number in range(2, count + 1)))


def _terminals_of(gateway: str) -> str:
    """Return the name of the port on which a gateway takes the WebSockets of terminals."""
    return f"{gateway}-terminals"


def _ports(layout: Layout, programs: Sequence[str]) -> dict[str, int]:
    """Return the TCP port of each program and of Redis: that of the last start, so that nodes reconnect, if it is free.

    At the first start, only the default state folder tries `API_PORT`. If every state folder did, two concurrent starts
    could both find this port free, and one would then connect to the other's API.
    """
    path = layout.state / "ports.json"
    api = API_PORT if layout.state == default_state() else 0
    stored: dict[str, int] = json.loads(path.read_text()) if path.exists() else {"api": api, "redis": 0}
    stored = {**dict.fromkeys(programs, 0), **stored}
    ports = {name: port if port and _is_free(port) else _free_port() for name, port in stored.items()}
    write_private(path, dict(ports))
    return ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
