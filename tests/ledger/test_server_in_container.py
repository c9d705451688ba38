"""Tests of the ledger that run a second time on a PostgreSQL server in a Docker container."""

from collections.abc import Iterator

import pytest

from deploy.embedded.postgres import PostgresServer
from tests.ledger.test_append import *  # noqa: F403  # the same tests, on another server
from tests.ledger.test_claims import *  # noqa: F403  # the same tests, on another server
from tests.ledger.test_tail import *  # noqa: F403  # the same tests, on another server
from tests.servers.container import server_in_container

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def postgres_server() -> Iterator[PostgresServer]:
    with server_in_container() as server:
        yield server
