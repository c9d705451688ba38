"""Agents in one process share their connections to the control plane; closing one client keeps them for the others."""

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
from node_agent.settings import Settings
from node_agent.transport.http_clients import SharedClient


@contextmanager
def users(*settings: Settings) -> Iterator[list[SharedClient]]:
    opened = [SharedClient(each) for each in settings]
    try:
        yield opened
    finally:
        for each in opened:
            each.close()


def post_to_unknown_path(client: SharedClient) -> int:
    return client.post("/v1/agent/nowhere", "{}", {}).status


def test_agents_with_the_same_control_plane_url_share_an_http_connection_pool(settings: Settings) -> None:
    with users(settings, settings) as (one, other):
        assert one.pool is other.pool


def test_shared_http_connection_pool_is_closed_when_its_last_client_closes(settings: Settings) -> None:
    with users(settings, settings) as (one, other):
        for _ in range(2):
            one.close()
        assert post_to_unknown_path(other) == HTTPStatus.NOT_FOUND
        other.close()
        with pytest.raises(ClosedPoolError):
            post_to_unknown_path(other)
    with users(settings) as [reopened]:
        assert post_to_unknown_path(reopened) == HTTPStatus.NOT_FOUND


def test_agents_with_different_control_plane_urls_or_ca_files_have_separate_http_connection_pools(
    settings: Settings, tmp_path: Path
) -> None:
    authorities = [ensure(tmp_path / name, ["127.0.0.1"], datetime.now(UTC)).ca for name in ("one", "other")]
    all_settings = [
        settings,
        settings.model_copy(update={"api_url": "http://127.0.0.1:1"}),
        *(
            settings.model_copy(update={"api_url": "https://127.0.0.1:1", "ca_file": ca})
            for ca in authorities
        ),
    ]
    with users(*all_settings) as opened:
        assert len({id(each.pool) for each in opened}) == len(all_settings)


def test_http_connection_that_the_control_plane_closed_while_idle_is_replaced_without_an_error(
    settings: Settings,
) -> None:
    answer = b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        server.settimeout(10)
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with users(settings.model_copy(update={"api_url": url})) as [client]:
            for _ in range(2):
                answer_status = pool.submit(post_to_unknown_path, client)
                with server.accept()[0] as connection:
                    connection.recv(65_536)
                    connection.sendall(answer)
                    assert answer_status.result(10) == HTTPStatus.NO_CONTENT
