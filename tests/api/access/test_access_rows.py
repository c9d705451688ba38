"""Tests of the rows of the access log in Postgres: their positions, and a crash of the database."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from control_plane.database import engine_of
from control_plane.schema import migrate
from control_plane.work.access_rows import (
    AccessFilter,
    Batch,
    NewRow,
    Writer,
    connect,
    following,
    store,
)
from deploy.embedded.postgres import PostgresServer, running_postgres
from tests.servers.postgres import Database, server_folder

PROCESS = UUID(int=1)


def row(number: int, place: int | None) -> NewRow:
    outcome = None if place is None else "completed"
    return NewRow(
        f"req-{number}",
        0.0,
        "GET",
        "/v1/nodes",
        "/v1/nodes",
        None,
        None,
        None,
        None,
        outcome,
        (),
        None,
        1,
        place,
    )


async def complete(conn: Writer, *numbers: int) -> None:
    """Store rows of requests that have ended."""
    rows = [row(number, place) for place, number in enumerate(numbers, 1)]
    await store(conn, PROCESS, Batch(rows, [], [], len(rows)))


def engine_for(dsn: str) -> AsyncEngine:
    url = psycopg.conninfo.conninfo_to_dict(dsn)
    return engine_of(
        f"postgresql+psycopg://{url['user']}:{url['password']}@/{url['dbname']}?host={url['host']}&port={url['port']}",
        2,
    )


async def followed(engine: AsyncEngine, after: int = 0) -> list[tuple[int, str]]:
    rows = await following(engine, AccessFilter(), after=after, limit=500)
    return [(each["position"], each["request_id"]) for each in rows]


@pytest.fixture
async def writers(database: Database) -> AsyncIterator[tuple[Writer, Writer]]:
    first, second = await connect(database.app_dsn), await connect(database.app_dsn)
    yield first, second
    await first.close()
    await second.close()


async def test_batch_of_access_log_rows_that_is_stored_twice_has_each_row_once(
    database: Database, writers: tuple[Writer, Writer]
) -> None:
    engine = engine_for(database.app_dsn)
    for _ in range(2):
        await complete(writers[0], 1, 2)
    assert await followed(engine) == [(1, "req-1"), (2, "req-2")]
    await engine.dispose()


async def test_access_log_rows_of_a_process_are_not_visible_before_rows_with_lower_positions_of_another_process(
    database: Database, writers: tuple[Writer, Writer]
) -> None:
    engine, (first, second) = engine_for(database.app_dsn), writers
    await first.execute("begin")
    await complete(first, 1)
    waiting = asyncio.create_task(complete(second, 2))
    query = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and query ~ 'access_head'"
    async with await psycopg.AsyncConnection.connect(database.admin_dsn, autocommit=True) as admin:
        while not await (await admin.execute(query)).fetchall():
            assert not waiting.done(), "the row with the higher position was committed first"
    await first.execute("commit")
    await waiting
    assert await followed(engine) == [(1, "req-1"), (2, "req-2")]
    await engine.dispose()


@pytest.fixture
def own_server(postgres_programs: Path) -> Iterator[PostgresServer]:
    with (
        server_folder() as folder,
        running_postgres(
            folder / "pg", folder / "run", settings={"fsync": "off"}, programs=postgres_programs
        ) as server,
    ):
        migrate(server.admin_dsn)
        yield server


async def test_access_log_position_that_a_follower_has_received_survives_a_crash_of_the_database(
    own_server: PostgresServer,
) -> None:
    engine = engine_for(own_server.app_dsn)
    conn = await connect(own_server.app_dsn)
    await complete(conn, 1, 2)
    received = await followed(engine)
    await engine.dispose()
    await crash(own_server)
    conn = await connect(own_server.app_dsn)
    await complete(conn, 3)
    assert [*received, *await followed(engine, received[-1][0])] == await followed(engine)
    assert [name for _, name in received] == ["req-1", "req-2"]
    await conn.close()
    await engine.dispose()


async def crash(server: PostgresServer) -> None:
    """Kill the database server and start it again. It loses what is not in its write-ahead log yet."""
    assert server.process is not None
    server.process.kill()
    await asyncio.to_thread(server.process.wait)
    await asyncio.to_thread(server.start)
