import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from deploy.embedded.postgres import PostgresServer
from deploy.embedded.postgres_cluster import PostgresUnavailable
from tests.servers.postgres import server_folder


@pytest.fixture
def server(postgres_programs: Path) -> Iterator[PostgresServer]:
    with server_folder() as folder:
        server = PostgresServer(
            folder / "pg", folder / "run", settings={"fsync": "off"}, programs=postgres_programs
        )
        yield server
        server.stop()


def stored_number(server: PostgresServer) -> int:
    with psycopg.connect(server.admin_dsn) as conn:
        row = conn.execute("select x from kept").fetchone()
    assert row is not None
    number: int = row[0]
    return number


def store(server: PostgresServer, number: int) -> None:
    with psycopg.connect(server.admin_dsn) as conn:
        conn.execute("create table kept as select %s::int as x", [number])


def test_embedded_postgres_started_after_a_stop_has_its_data_and_passwords(server: PostgresServer) -> None:
    server.start()
    store(server, 7)
    dsn = server.app_dsn
    server.stop()

    server.start()

    assert stored_number(server) == 7
    assert server.app_dsn == dsn


def test_embedded_postgres_started_after_sigkill_has_its_data(server: PostgresServer) -> None:
    server.start()
    store(server, 8)
    assert server.process is not None
    server.process.kill()
    server.process.wait()

    server.start()

    assert stored_number(server) == 8


def test_embedded_postgres_starts_if_its_stale_lock_file_names_an_unrelated_live_process(
    server: PostgresServer,
) -> None:
    server.start()
    server.stop()
    (server.folder / "data" / "postmaster.pid").write_text(f"{os.getpid()}\n{server.folder / 'data'}\n")

    server.start()


def test_second_embedded_postgres_on_the_same_data_folder_fails_to_start(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deploy.embedded.postgres_cluster.VACATE_SECONDS", 0.2)
    server.start()
    second = PostgresServer(server.folder, server.run_folder.with_name("run2"), programs=server.programs)

    with pytest.raises(PostgresUnavailable, match="in use"):
        second.start()

    with psycopg.connect(server.admin_dsn) as conn:
        conn.execute("select 1")


def test_embedded_postgres_that_receives_sigint_exits_with_status_zero(server: PostgresServer) -> None:
    server.start()
    assert server.process is not None
    server.process.send_signal(signal.SIGINT)

    assert server.process.wait(10) == 0


def test_embedded_postgres_listens_on_a_unix_socket_only_and_requires_a_password(
    server: PostgresServer,
) -> None:
    server.start()

    with psycopg.connect(server.admin_dsn) as conn:
        assert conn.execute("show listen_addresses").fetchone() == ("",)
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(host=str(server.run_folder), user="postgres", dbname="postgres")
    assert (server.folder / "secrets.json").stat().st_mode & 0o777 == 0o600
    assert server.run_folder.stat().st_mode & 0o777 == 0o700


def test_embedded_postgres_with_an_invalid_setting_fails_to_start_and_names_the_setting(
    server: PostgresServer,
) -> None:
    server.settings = {"shared_buffers": "nonsense"}

    with pytest.raises(PostgresUnavailable, match="shared_buffers"):
        server.start()

    assert server.process is None
