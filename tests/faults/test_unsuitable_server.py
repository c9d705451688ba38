"""Tests that every program refuses, with one sentence, a PostgreSQL server on which the ledger's guarantees do not
hold.
"""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from control_plane.programs import SERVER, Program
from deploy.embedded.children import installed_program
from deploy.embedded.postgres import PostgresServer, running_postgres
from deploy.embedded.postgres_cluster import as_user, server_environment, server_user
from deploy.embedded.signing_key import ensure_sealing_key
from tests.servers.plane import settings_for
from tests.servers.postgres import TEMPLATE, Database, server_folder
from tests.servers.program_copies import run_copy
from tests.waiting import until

PROGRAMS = (*Program, "issue-key")

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def preparing(postgres_programs: Path) -> Iterator[PostgresServer]:
    """PostgreSQL server that accepts prepared transactions."""
    settings = {"fsync": "off", "max_prepared_transactions": "5"}
    with (
        server_folder() as folder,
        running_postgres(
            folder / "pg", folder / "run", settings=settings, programs=postgres_programs
        ) as server,
    ):
        yield server


@pytest.fixture(scope="module")
def standby(postgres_programs: Path) -> Iterator[PostgresServer]:
    """PostgreSQL standby server that follows a primary."""
    settings = {"fsync": "off"}
    with (
        server_folder() as folder,
        running_postgres(
            folder / "pg", folder / "run", settings=settings, programs=postgres_programs
        ) as primary,
    ):
        copy = PostgresServer(folder / "copy", folder / "run2", settings=settings, programs=postgres_programs)
        copy_of(primary, copy.folder, postgres_programs)
        copy.start()
        try:
            yield copy
        finally:
            copy.stop()


def copy_of(primary: PostgresServer, folder: Path, programs: Path) -> None:
    """Make a base backup of a PostgreSQL server, for a standby that follows this server with the same passwords."""
    user = server_user()
    folder.mkdir(mode=0o700)
    if user is not None:
        shutil.chown(folder, user.pw_uid, user.pw_gid)
    subprocess.run(
        [*as_user(user), programs / "pg_basebackup", "--pgdata", folder / "data", "--write-recovery-conf",
         "--checkpoint", "fast", "--no-sync", "--dbname", primary.admin_dsn_of("replication")],
        check=True, cwd=folder, env=server_environment(programs),
    )  # fmt: skip
    shutil.copy(primary.folder / "secrets.json", folder / "secrets.json")


def check_all_refuse(server: PostgresServer, folder: Path, reason: str) -> None:
    """Check that each program prints one line that names the reason why it refuses the server, and ends."""
    settings = settings_for(Database(server, TEMPLATE), "redis://127.0.0.1:1", port=0, queue_port=1)
    environment = {
        "SLICEPLANE_DATABASE_URL": settings.database_url.get_secret_value(),
        "SLICEPLANE_REDIS_URL": settings.redis_url.get_secret_value(),
        "SLICEPLANE_SEALING_KEY_FILE": str(ensure_sealing_key(folder / "sealing.pem")),
    }
    for program in PROGRAMS:
        named = ["alice"] if program == "issue-key" else []
        run = run_copy(installed_program(SERVER, program, *named), environment)
        (line,) = run.stderr.splitlines()
        assert line.startswith("This PostgreSQL server cannot be used for the ledger: ")
        assert reason in line
        assert (run.returncode, run.stdout) == (1, "")


def test_every_program_refuses_a_postgres_server_with_prepared_transactions_enabled(
    preparing: PostgresServer, tmp_path: Path
) -> None:
    check_all_refuse(preparing, tmp_path, "max_prepared_transactions is not 0")


def test_every_program_refuses_a_postgres_standby_server(standby: PostgresServer, tmp_path: Path) -> None:
    check_all_refuse(standby, tmp_path, "the server is a standby")


def test_standby_server_that_the_tests_start_follows_its_primary(standby: PostgresServer) -> None:
    with psycopg.connect(standby.admin_dsn, autocommit=True) as conn:
        until(lambda: receives(conn), "the standby receives what its primary writes")


def receives(conn: psycopg.Connection) -> bool:
    return (
        conn.execute("select 1 from pg_stat_wal_receiver where status = 'streaming'").fetchone() is not None
    )
