"""Tests of the database connection pool: it provides usable connections, even if a connection was broken after its last
use.
"""

import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from control_plane.database import engine_of
from events.ledger.connection import ledger_connection
from tests.servers.plane import settings_for
from tests.servers.postgres import Database

_BACKEND = "select pg_backend_pid()"


@pytest.fixture
async def engine(database: Database) -> AsyncIterator[AsyncEngine]:
    engine = engine_of(settings_for(database, "redis://unused", 1, 1).database_url.get_secret_value(), 1)
    yield engine
    await engine.dispose()


@pytest.fixture
def without_garbage_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


async def backend_pid(conn: AsyncConnection) -> int:
    return int((await conn.exec_driver_sql(_BACKEND)).scalar_one())


async def test_intact_database_connection_is_reused_by_the_pool(engine: AsyncEngine) -> None:
    async with engine.begin() as conn:
        first = await backend_pid(conn)
    async with engine.begin() as conn:
        assert await backend_pid(conn) == first


async def test_database_connection_terminated_by_the_server_is_replaced_by_the_pool(
    engine: AsyncEngine, database: Database
) -> None:
    async with engine.begin() as conn:
        first = await backend_pid(conn)
    async with await psycopg.AsyncConnection.connect(database.admin_dsn, autocommit=True) as admin:
        await admin.execute("select pg_terminate_backend(%s, 5000)", [first])
    async with engine.begin() as conn:
        assert await backend_pid(conn) != first


async def test_database_connection_left_in_pipeline_mode_is_replaced_by_the_pool(engine: AsyncEngine) -> None:
    """An asyncio task that is cancelled directly after its pipeline began leaves a connection in this mode."""
    async with engine.begin() as conn:
        first = await backend_pid(conn)
        pipeline = (await ledger_connection(conn)).pipeline()
        await pipeline.__aenter__()
    async with engine.begin() as conn:
        assert await backend_pid(conn) != first


@pytest.mark.usefixtures("without_garbage_collection")
async def test_connection_that_is_being_opened_is_closed_when_its_task_is_cancelled(tmp_path: Path) -> None:
    """A Postgres process that still waits for a password blocks CREATE and DROP DATABASE for up to 60 seconds."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / ".s.PGSQL.5432"))
        server.listen()
        server.setblocking(False)
        loop = asyncio.get_running_loop()
        engine = engine_of(f"postgresql+psycopg://user@/name?host={tmp_path}&port=5432", 1)
        opening = asyncio.ensure_future(engine.connect().start())
        accepted, _ = await loop.sock_accept(server)
        with accepted:
            assert b"user" in await loop.sock_recv(accepted, 1000), "the client waits for the server's answer"
            opening.cancel()
            with suppress(asyncio.CancelledError):
                await opening
            async with asyncio.timeout(5):
                assert await loop.sock_recv(accepted, 1000) == b""
