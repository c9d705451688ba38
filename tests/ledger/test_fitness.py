from pathlib import Path

import psycopg
import pytest

from deploy.embedded.postgres import running_postgres
from events.ledger.fitness import UnfitServer, refuse_unfit_server
from tests.servers.postgres import Database, server_folder


async def test_postgres_server_that_meets_all_requirements_is_accepted(conn: psycopg.AsyncConnection) -> None:
    await refuse_unfit_server(conn)


async def test_connection_as_a_superuser_is_rejected_as_unfit(database: Database) -> None:
    async with await psycopg.AsyncConnection.connect(database.admin_dsn) as conn:
        with pytest.raises(UnfitServer, match="superuser"):
            await refuse_unfit_server(conn)


async def test_postgres_server_that_misses_several_requirements_is_rejected_with_all_reasons(
    postgres_programs: Path,
) -> None:
    settings = {"max_prepared_transactions": "5", "fsync": "off"}
    with (
        server_folder() as folder,
        running_postgres(
            folder / "pg", folder / "run", settings=settings, programs=postgres_programs
        ) as server,
    ):
        with psycopg.connect(server.admin_dsn, autocommit=True) as admin:
            admin.execute("create database latin encoding 'LATIN1' template template0")
        async with await psycopg.AsyncConnection.connect(server.admin_dsn_of("latin")) as conn:
            with pytest.raises(UnfitServer) as refused:
                await refuse_unfit_server(conn)

    assert [word for word in ("prepared", "LATIN1", "superuser") if word in str(refused.value)] == [
        "prepared", "LATIN1", "superuser",
    ]  # fmt: skip


async def test_standby_server_is_rejected_as_unfit(postgres_programs: Path) -> None:
    with server_folder() as folder:
        settings = {"fsync": "off"}
        with running_postgres(folder / "pg", folder / "run", settings=settings, programs=postgres_programs):
            pass
        (
            folder / "pg" / "data" / "standby.signal"
        ).touch()  # Without a primary, the server stays in recovery permanently.
        with running_postgres(
            folder / "pg", folder / "run", settings=settings, programs=postgres_programs
        ) as server:
            async with await psycopg.AsyncConnection.connect(server.app_dsn) as conn:
                with pytest.raises(UnfitServer, match="standby"):
                    await refuse_unfit_server(conn)
