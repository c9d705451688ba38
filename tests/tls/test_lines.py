"""A node's two connections to a Redis that speaks TLS: they believe what they were told, learn, and can be ended."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from deploy.embedded import redis as embedded_redis
from deploy.embedded.certificates import Certificates, ensure
from tasks.broker import QueueAddress
from tasks.broker.link import Line, QueueAway
from tests.servers.redis import server_folder
from tests.waiting import until


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return ensure(tmp_path_factory.mktemp("own"), ["127.0.0.1"], datetime.now(UTC))


@pytest.fixture(scope="module")
def server(server_with_tls: Path, own: Certificates) -> Iterator[embedded_redis.RedisServer]:
    bind = ("127.0.0.1", "127.0.0.2")  # one that the certificate names, and one that it does not
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


def test_a_redis_of_another_ca_is_away_until_the_node_learns_of_that_ca(
    address: QueueAddress, others: Certificates
) -> None:
    line = Line(replace(address, ca=others.ca.read_text()), name="test")
    with pytest.raises(QueueAway, match="not signed by a CA that is believed here"):
        line.call("PING")
    line.believe(address.ca)
    assert line.call("PING") == b"PONG"
    line.close()


def test_a_file_of_two_cas_believes_both(address: QueueAddress, others: Certificates) -> None:
    line = Line(replace(address, ca=f"{others.ca.read_text()}{address.ca}"), name="test")
    assert line.call("PING") == b"PONG"
    line.close()


def test_the_systems_cas_do_not_count_beside_none_and_a_name_is_checked(address: QueueAddress) -> None:
    with pytest.raises(QueueAway, match="not signed by a CA that is believed here"):
        Line(replace(address, ca=None), name="test").call("PING")
    line = Line(replace(address, host="localhost"), name="test")
    assert line.call("PING") == b"PONG"
    line.close()
    with pytest.raises(QueueAway, match="the certificate is another's"):
        Line(replace(address, host="127.0.0.2"), name="test").call("PING")


def test_a_line_that_waits_is_ended_at_once(address: QueueAddress) -> None:
    line = Line(address, name="test", answer_seconds=30)
    assert line.call("PING") == b"PONG"
    ended: list[str] = []

    def wait() -> None:
        try:
            line.call("BLMOVE", "nothing", "nothing", "LEFT", "LEFT", 20)
        except QueueAway as away:
            ended.append(away.reason)

    waiter = threading.Thread(target=wait)
    waiter.start()
    looking = Line(address, name="test")
    until(lambda: "blocked_clients:1" in str(looking.call("INFO", "clients")), "the line waits")
    looking.close()
    line.end()
    waiter.join(5)
    assert not waiter.is_alive()
    assert ended
    line.close()
