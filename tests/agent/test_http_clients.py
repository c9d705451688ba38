"""Agents of one process share their connections to the control plane, and none takes them from another."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path

import pytest
from urllib3.exceptions import ClosedPoolError

from deploy.embedded.certificates import ensure
from node_agent.http_clients import SharedClient
from node_agent.settings import Settings


@contextmanager
def users(*settings: Settings) -> Iterator[list[SharedClient]]:
    opened = [SharedClient(each) for each in settings]
    try:
        yield opened
    finally:
        for each in opened:
            each.close()


def nowhere(client: SharedClient) -> int:
    return client.post("/v1/agent/nowhere", "{}", {}).status


def test_agents_that_ask_at_one_place_share_a_client(settings: Settings) -> None:
    with users(settings, settings) as (one, other):
        assert one.pool is other.pool


def test_a_client_goes_on_until_the_last_that_uses_it_gives_it_back(settings: Settings) -> None:
    with users(settings, settings) as (one, other):
        for _ in range(2):
            one.close()
        assert nowhere(other) == HTTPStatus.NOT_FOUND
        other.close()
        with pytest.raises(ClosedPoolError):
            nowhere(other)
    with users(settings) as [anew]:
        assert nowhere(anew) == HTTPStatus.NOT_FOUND


def test_agents_that_ask_elsewhere_or_believe_others_have_another(settings: Settings, tmp_path: Path) -> None:
    authorities = [ensure(tmp_path / name, ["127.0.0.1"], datetime.now(UTC)).ca for name in ("one", "other")]
    asked = [
        settings,
        settings.model_copy(update={"api_url": "http://127.0.0.1:1"}),
        *(
            settings.model_copy(update={"api_url": "https://127.0.0.1:1", "ca_file": ca})
            for ca in authorities
        ),
    ]
    with users(*asked) as opened:
        assert len({id(each.pool) for each in opened}) == len(asked)


def test_a_connection_that_was_ended_while_it_was_idle_is_replaced_and_nobody_notices(
    settings: Settings,
) -> None:
    answer = b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as beside:
        server.settimeout(10)
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with users(settings.model_copy(update={"api_url": url})) as [client]:
            for _ in range(2):
                asked = beside.submit(nowhere, client)
                with server.accept()[0] as connection:
                    connection.recv(65_536)
                    connection.sendall(answer)
                    assert asked.result(10) == HTTPStatus.NO_CONTENT
