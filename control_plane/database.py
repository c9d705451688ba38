"""Connections to Postgres: a connection pool that never hands out an unusable connection."""

import select
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import psycopg
import sqlalchemy as sa
from psycopg.pq import PipelineStatus
from sqlalchemy import event, exc
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

LONG_PAUSES: Final = "select set_config('idle_in_transaction_session_timeout', '5min', true)"
"""Statement for the transaction of an export. With a slow reader, it pauses between two statements for longer than
other transactions may.
"""


class DatabaseUnavailable(Exception):
    """A program cannot start with the configured database; the message names the database and the reason."""

    def __init__(self, url: sa.URL, reason: str) -> None:
        super().__init__(f"{url.render_as_string(hide_password=True)}: {reason}")


def engine_of(url: str, pool: int) -> AsyncEngine:
    """Return a connection pool of at most `pool` connections."""
    engine = create_async_engine(
        url, pool_size=pool, max_overflow=0, connect_args={"async_creator_fn": _open}
    )
    event.listen(engine.sync_engine, "checkout", _refuse_unusable)
    return engine


@asynccontextmanager
async def reading(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """Yield a connection for queries that need no common snapshot: each statement is its own transaction.

    An explicit transaction would cost two more round trips to the database, to begin and to end it.
    """
    async with engine.connect() as conn:
        yield await conn.execution_options(isolation_level="AUTOCOMMIT")


async def plan_each_statement(engine: AsyncEngine) -> None:
    """Make Postgres plan each statement of an engine's connections for its parameters, and close idle connections.

    Postgres keeps the plan of a prepared statement. A plan that was made when the tables of a new database were small
    reads them as a whole, until the next analysis of the tables. A program with few large statements per second, on
    tables that grow quickly, gains more than the planning costs.
    """
    event.listen(engine.sync_engine, "connect", _use_custom_plans)
    await engine.dispose()


def _use_custom_plans(connection: Any, _entry: ConnectionPoolEntry) -> None:
    connection.cursor().execute("set plan_cache_mode = force_custom_plan")
    connection.commit()


async def _open(*args: Any, **options: Any) -> psycopg.AsyncConnection:
    """Open a connection, and close its socket if the calling task is cancelled meanwhile."""
    try:
        return await psycopg.AsyncConnection.connect(*args, **options)
    except BaseException as error:
        # The frames of the traceback own the unfinished connection, and SQLAlchemy keeps the traceback in a reference
        # cycle until the next garbage collection. Until then the server would wait for a password, for at most
        # `authentication_timeout` (60 seconds), and CREATE and DROP DATABASE wait for such a server process.
        traceback.clear_frames(error.__traceback__)
        raise


def _refuse_unusable(connection: Any, _entry: ConnectionPoolEntry, _proxy: Any) -> None:
    """Make the pool replace a connection that cannot be used. Raises `DisconnectionError`.

    A server that sends data outside a query is ending the connection, as it does on restart. (SQLAlchemy's own check
    sends a query, which costs one more round trip per transaction.) An asyncio task that was cancelled while it
    started a pipeline leaves its connection in pipeline mode (psycopg 3.3: `wait_async` may yield after the work is
    done), where no statement returns a result.
    """
    driver: psycopg.AsyncConnection = connection.driver_connection
    if driver.pgconn.pipeline_status != PipelineStatus.OFF:
        raise exc.DisconnectionError("the Postgres connection was left in pipeline mode")
    poll = select.poll()
    poll.register(driver.fileno(), select.POLLIN)
    if poll.poll(0):
        raise exc.DisconnectionError("the Postgres server ended the connection")
