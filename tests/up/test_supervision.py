"""Tests of the supervision by `./dev up`: it restarts a server as long as `./dev up` runs, however often the server
fails.
"""

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
    """Running control plane, and the lines that its supervisor printed."""

    layout: Layout
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.layout.ensure()
        self.stack = Stack(self.layout, (), self.lines.append)

    def kill(self, server: str) -> None:
        os.kill(self.stack.servers[server], signal.SIGKILL)

    def is_ready(self) -> bool:
        """Let the supervisor restart exited processes once. Return whether the API is ready now."""
        self.stack.supervise()
        try:
            answer = httpx.get(f"{self.stack.api_url}/readyz", timeout=2, verify=self.stack.trusted)
        except httpx.TransportError:
            return False
        return answer.status_code == httpx.codes.OK

    def failed_starts(self, server: str) -> int:
        """Let the supervisor restart exited processes once. Return how many starts of the server have failed so far."""
        self.stack.supervise()
        return sum(line.startswith(f"{server} did not start") for line in self.lines)

    def restarts(self, server: str) -> int:
        """Let the supervisor restart exited processes once. Return how often it has restarted the server so far."""
        self.stack.supervise()
        return self.lines.count(f"{server} exited and is restarted")


@pytest.fixture(scope="module")
def running() -> Iterator[Supervised]:
    with server_folder() as folder:
        supervised_plane = Supervised(Layout(folder))
        try:
            supervised_plane.stack.start()
            yield supervised_plane
        finally:
            supervised_plane.stack.stop()
            supervised_plane.layout.remove_run()


@pytest.fixture
def supervised(running: Supervised) -> Supervised:
    running.lines.clear()
    return running


def test_start_of_postgres_is_retried_by_dev_up_until_it_succeeds(supervised: Supervised) -> None:
    control = supervised.layout.state / "postgres" / "data" / "global" / "pg_control"
    hidden = control.rename(control.with_name("pg_control.hidden"))
    supervised.kill("postgres")
    until(lambda: supervised.restarts("PostgreSQL") >= 2, "PostgreSQL is retried")
    hidden.rename(control)
    until(supervised.is_ready, "the API is ready", 60)


def test_postgres_killed_during_two_recoveries_in_a_row_is_restarted_by_dev_up(
    supervised: Supervised,
) -> None:
    for kills in (1, 2):
        supervised.kill("postgres")
        until(partial(_is_restarted, supervised, kills), "PostgreSQL is restarted")
    until(supervised.is_ready, "the API is ready", 60)


def test_start_of_redis_is_retried_by_dev_up_until_redis_can_listen(supervised: Supervised) -> None:
    port = int(supervised.stack.redis_url.rpartition(":")[2].partition("/")[0])
    supervised.kill("redis")
    with closing(_listener(port)):
        until(lambda: supervised.failed_starts("Redis") >= 2, "Redis is retried")
    until(supervised.is_ready, "the API is ready", 60)
    assert supervised.stack.servers["redis"] > 0


def _is_restarted(supervised: Supervised, times: int) -> bool:
    return supervised.restarts("PostgreSQL") == times


def _listener(port: int) -> socket.socket:
    """Return a socket that occupies the port as soon as the killed server has released it."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    def is_bound() -> bool:
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True

    until(is_bound, "the port is free")
    listener.listen()
    return listener
