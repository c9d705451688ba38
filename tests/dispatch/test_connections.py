"""What the pool gives out can be used, whatever became of the connection since it was used last."""

from collections.abc import AsyncIterator

import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from control_plane.database import engine_of
from events.connection import ledger_connection
from tests.servers.plane import settings_for
from tests.servers.postgres import Database

_WHO = "select pg_backend_pid()"


@pytest.fixture
async def engine(database: Database) -> AsyncIterator[AsyncEngine]:
    engine = engine_of(settings_for(database, "redis://unused", 1, 1).database_url.get_secret_value(), 1)
    yield engine
    await engine.dispose()


async def who_serves(conn: AsyncConnection) -> int:
    return int((await conn.exec_driver_sql(_WHO)).scalar_one())


async def test_a_connection_that_served_is_given_out_again(engine: AsyncEngine) -> None:
    async with engine.begin() as conn:
        first = await who_serves(conn)
    async with engine.begin() as conn:
        assert await who_serves(conn) == first


async def test_a_connection_that_the_server_ended_is_replaced(
    engine: AsyncEngine, database: Database
) -> None:
    async with engine.begin() as conn:
        first = await who_serves(conn)
    async with await psycopg.AsyncConnection.connect(database.admin_dsn, autocommit=True) as admin:
        await admin.execute("select pg_terminate_backend(%s, 5000)", [first])
    async with engine.begin() as conn:
        assert await who_serves(conn) != first


async def test_a_connection_that_was_left_in_a_pipeline_is_replaced(engine: AsyncEngine) -> None:
    """As by a task that is cancelled just when its pipeline has begun."""
    async with engine.begin() as conn:
        first = await who_serves(conn)
        left = (await ledger_connection(conn)).pipeline()
        await left.__aenter__()
    async with engine.begin() as conn:
        assert await who_serves(conn) != first
