"""Fixtures of the TLS tests: one control plane per module, because its start takes seconds. Each test restores the
control plane's own certificates.
"""

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
    if not embedded_redis.supports_tls(found):
        missing_server("a redis-server with TLS")
    return found


@pytest.fixture(scope="module")
def site(server_with_tls: Path) -> Iterator[Site]:
    state = Path(tempfile.mkdtemp(prefix="sp-tls-"))
    layout = Layout(state)
    layout.ensure()
    # Simulate a later start: the CA is still valid for years, and the servers' certificate has expired.
    made = ensure(
        layout.certificates,
        ["127.0.0.1"],
        datetime.now(UTC) - SERVER_LIFE - timedelta(days=1),
    )
    expired = made.server.rename(layout.state / "expired.pem")
    made.server.write_bytes(expired.read_bytes())
    output: list[str] = []
    stack = Stack(layout, (), output.append, simulated_nodes=True)
    try:
        stack.start()
        yield Site(layout, stack, output, expired)
    finally:
        stack.stop()
        layout.remove_run()
        shutil.rmtree(state)


@pytest.fixture(scope="module")
def agent(site: Site) -> Iterator[Agent]:
    """Agent of the node `lab-a`, with approved slots."""
    agent = site.agent(NODE)
    try:
        site.approve(NODE)
        yield agent
    finally:
        agent.child.stop()


@pytest.fixture
def other_ca(tmp_path: Path) -> Certificates:
    """Certificates of a different CA for the same server addresses."""
    return ensure(tmp_path / "others", ["127.0.0.1"], datetime.now(UTC))
