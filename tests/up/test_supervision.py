"""A supervised server is started again for as long as `up` runs, however often it fails meanwhile."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

import httpx
import pytest

from deploy.embedded.layout import Layout
from deploy.embedded.stack import Stack
from tests.servers.postgres import server_folder
from tests.waiting import until

pytestmark = pytest.mark.timeout(180)


@dataclass
class Supervised:
    """A running control plane and the lines that its supervisor printed."""

    layout: Layout
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.layout.ensure()
        self.stack = Stack(self.layout, (), self.lines.append)

    def kill(self, server: str) -> None:
        os.kill(self.stack.servers[server], signal.SIGKILL)

    def is_ready(self) -> bool:
        """Tend the processes once; whether the API is ready now."""
        self.stack.tend()
        try:
            answer = httpx.get(f"{self.stack.api_url}/readyz", timeout=2, verify=self.stack.trusted)
        except httpx.TransportError:
            return False
        return answer.status_code == httpx.codes.OK

    def failed_starts(self, server: str) -> int:
        """Tend the processes once; how many starts of the server failed until now."""
        self.stack.tend()
        return sum(line.startswith(f"{server} did not start") for line in self.lines)

    def restarts(self, server: str) -> int:
        """Tend the processes once; how often the server was started again until now."""
        self.stack.tend()
        return self.lines.count(f"{server} ended and is started again")


@pytest.fixture(scope="module")
def running() -> Iterator[Supervised]:
    with server_folder() as folder:
        made = Supervised(Layout(folder))
        try:
            made.stack.start()
            yield made
        finally:
            made.stack.stop()
            made.layout.remove_run()


@pytest.fixture
def supervised(running: Supervised) -> Supervised:
    running.lines.clear()
    return running


def test_postgres_that_cannot_start_is_retried_until_it_can(supervised: Supervised) -> None:
    control = supervised.layout.state / "postgres" / "data" / "global" / "pg_control"
    hidden = control.rename(control.with_name("pg_control.hidden"))
    supervised.kill("postgres")
    until(lambda: supervised.restarts("PostgreSQL") >= 2, "PostgreSQL is retried")
    hidden.rename(control)
    until(supervised.is_ready, "the API is ready", 60)


def test_postgres_killed_at_each_of_two_recoveries_is_started_again(supervised: Supervised) -> None:
    for kills in (1, 2):
        supervised.kill("postgres")
        until(partial(_is_restarted, supervised, kills), "PostgreSQL is started again")
    until(supervised.is_ready, "the API is ready", 60)


def test_redis_that_cannot_listen_is_retried_until_it_can(supervised: Supervised) -> None:
    port = int(supervised.stack.redis_url.rpartition(":")[2].partition("/")[0])
    supervised.kill("redis")
    with closing(_listener(port)):
        until(lambda: supervised.failed_starts("Redis") >= 2, "Redis is retried")
    until(supervised.is_ready, "the API is ready", 60)
    assert supervised.stack.servers["redis"] > 0


def _is_restarted(supervised: Supervised, times: int) -> bool:
    return supervised.restarts("PostgreSQL") == times


def _listener(port: int) -> socket.socket:
    """Occupy the port once the killed server has left it."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    def is_bound() -> bool:
        try:
            made.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True

    until(is_bound, "the port is free")
    made.listen()
    return made
