"""Connections to Postgres: a pool that gives out none that cannot be used."""

import select
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg.pq import PipelineStatus
from sqlalchemy import event, exc
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry


class DatabaseUnavailable(Exception):
    """A program cannot begin on the database of its settings; the message names the database and the reason."""

    def __init__(self, url: sa.URL, error: exc.DBAPIError) -> None:
        # The first line names the server and the error; hints and further addresses are on the others.
        reason = str(error.orig).partition("\n")[0].rstrip(". ")
        super().__init__(f"{url.render_as_string(hide_password=True)}: {reason}")


def engine_of(url: str, pool: int) -> AsyncEngine:
    """A pool of at most so many connections."""
    engine = create_async_engine(url, pool_size=pool, max_overflow=0)
    event.listen(engine.sync_engine, "checkout", _refuse_unusable)
    return engine


@asynccontextmanager
async def reading(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A connection for who asks one thing, or several that need not agree: each statement is a transaction of its own.

    One around them would cost two more ways to the database, to begin it and to end it.
    """
    async with engine.connect() as conn:
        yield await conn.execution_options(isolation_level="AUTOCOMMIT")


def _refuse_unusable(connection: Any, _entry: ConnectionPoolEntry, _given: Any) -> None:
    """Have the pool make a new connection in this one's place. Raises `DisconnectionError`.

    A server that says anything while nobody asks it says good-bye, as one that restarts says to all. (SQLAlchemy's own
    check asks the server, which is one more way there and back for each transaction.) And a task that was cancelled
    as it began a pipeline leaves its connection in one (psycopg 3.3: `wait_async` may give way when all is done), where
    no statement has a result.
    """
    driver: psycopg.AsyncConnection = connection.driver_connection
    if driver.pgconn.pipeline_status != PipelineStatus.OFF:
        raise exc.DisconnectionError("the connection was left in a pipeline")
    poll = select.poll()
    poll.register(driver.fileno(), select.POLLIN)
    if poll.poll(0):
        raise exc.DisconnectionError("the server ended the connection")
