"""Tests of a node's connections to a Redis with TLS: they verify its certificate, accept a new CA,
and can be closed.
"""

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from deploy.embedded import redis as embedded_redis
from deploy.embedded.certificates import Certificates, ensure
from node_agent.transport.broker import QueueAddress
from node_agent.transport.broker.link import Line, QueueUnavailable
from tests.servers.redis import server_folder
from tests.waiting import until


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return ensure(tmp_path_factory.mktemp("own"), ["127.0.0.1"], datetime.now(UTC))


@pytest.fixture(scope="module")
def server(server_with_tls: Path, own: Certificates) -> Iterator[embedded_redis.RedisServer]:
    bind = ("127.0.0.1", "127.0.0.2")  # the certificate contains only the first address
    with server_folder() as folder:
        server = embedded_redis.start(folder, bind=bind, server=server_with_tls, certificates=own)
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture
def address(server: embedded_redis.RedisServer, own: Certificates) -> QueueAddress:
    return QueueAddress(
        server.address,
        server.port,
        embedded_redis.USER,
        server.password,
        "ctl:lab-a",
        tls=True,
        ca=own.ca.read_text(),
    )


def test_redis_with_a_certificate_of_another_ca_is_unavailable_until_the_node_trusts_this_ca(
    address: QueueAddress, other_ca: Certificates
) -> None:
    line = Line(replace(address, ca=other_ca.ca.read_text()), name="test")
    with pytest.raises(QueueUnavailable, match="not signed by a trusted CA"):
        line.call("PING")
    line.trust_ca(address.ca)
    assert line.call("PING") == b"PONG"
    line.close()


def test_redis_client_trusts_every_ca_in_a_file_with_two_ca_certificates(
    address: QueueAddress, other_ca: Certificates
) -> None:
    line = Line(replace(address, ca=f"{other_ca.ca.read_text()}{address.ca}"), name="test")
    assert line.call("PING") == b"PONG"
    line.close()


def test_redis_certificate_is_accepted_only_with_a_trusted_ca_and_the_correct_host_name(
    address: QueueAddress,
) -> None:
    with pytest.raises(QueueUnavailable, match="not signed by a trusted CA"):
        Line(replace(address, ca=None), name="test").call("PING")
    line = Line(replace(address, host="localhost"), name="test")
    assert line.call("PING") == b"PONG"
    line.close()
    with pytest.raises(QueueUnavailable, match="the certificate is for another host"):
        Line(replace(address, host="127.0.0.2"), name="test").call("PING")


def test_blocked_redis_call_ends_at_once_when_its_tls_connection_is_ended(address: QueueAddress) -> None:
    line = Line(address, name="test", answer_seconds=30)
    assert line.call("PING") == b"PONG"
    ended: list[str] = []

    def wait() -> None:
        try:
            line.call("BLMOVE", "nothing", "nothing", "LEFT", "LEFT", 20)
        except QueueUnavailable as away:
            ended.append(away.reason)

    waiter = threading.Thread(target=wait)
    waiter.start()
    observer = Line(address, name="test")
    until(lambda: "blocked_clients:1" in str(observer.call("INFO", "clients")), "the call blocks")
    observer.close()
    line.end()
    waiter.join(5)
    assert not waiter.is_alive()
    assert ended
    line.close()
