"""Tests of the database connection pool: it provides usable connections, even if a connection was broken after its last
use.
"""

from collections.abc import AsyncIterator

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
