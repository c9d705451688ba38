"""One site for a module: it takes seconds to come up, and its tests leave it with its own certificates."""

import shutil
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from deploy.embedded import redis as embedded_redis
from deploy.embedded.certificates import SERVER_LIFE, Certificates, ensure
from deploy.embedded.layout import Layout
from deploy.embedded.stack import Stack
from tests.plugins.requirements import missing_server
from tests.tls.site import NODE, Agent, Site


@pytest.fixture(scope="session")
def server_with_tls() -> Path:
    try:
        found = embedded_redis.find_server()
    except embedded_redis.RedisNotFound as missing:
        missing_server(str(missing))
    if not embedded_redis.speaks_tls(found):
        missing_server("a redis-server with TLS")
    return found


@pytest.fixture(scope="module")
def site(server_with_tls: Path) -> Iterator[Site]:
    state = Path(tempfile.mkdtemp(prefix="sp-tls-"))
    layout = Layout(state)
    layout.ensure()
    # As if this were not the first start: the CA has years to go, and the servers' certificate none.
    made = ensure(
        layout.certificates,
        ["127.0.0.1"],
        datetime.now(UTC) - SERVER_LIFE - timedelta(days=1),
    )
    expired = made.server.rename(layout.state / "expired.pem")
    made.server.write_bytes(expired.read_bytes())
    said: list[str] = []
    stack = Stack(layout, (), said.append, simulated_nodes=True)
    try:
        stack.start()
        yield Site(layout, stack, said, expired)
    finally:
        stack.stop()
        layout.remove_run()
        shutil.rmtree(state)


@pytest.fixture(scope="module")
def agent(site: Site) -> Iterator[Agent]:
    """Of `lab-a`, which takes orders."""
    agent = site.agent(NODE)
    try:
        site.approve(NODE)
        yield agent
    finally:
        agent.child.stop()


@pytest.fixture
def others(tmp_path: Path) -> Certificates:
    """Certificates for the same addresses, by another CA."""
    return ensure(tmp_path / "others", ["127.0.0.1"], datetime.now(UTC))
