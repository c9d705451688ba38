"""Access to the psycopg connection under a SQLAlchemy connection: the same transaction without SQLAlchemy's overhead.

Rows are read by the names of their columns, so that a column that is added to a query cannot shift the others.
"""

from collections.abc import Callable
from typing import Any, LiteralString, TypeVar

import psycopg
from psycopg.abc import Params
from psycopg.rows import kwargs_row, scalar_row
from sqlalchemy.ext.asyncio import AsyncConnection

R = TypeVar("R")


async def ledger_connection(conn: AsyncConnection) -> psycopg.AsyncConnection[tuple[object, ...]]:
    """Return the psycopg connection under a SQLAlchemy connection, for calls such as COPY. Only `conn` begins and ends
    transactions.
    """
    driver = (await conn.get_raw_connection()).driver_connection
    assert isinstance(driver, psycopg.AsyncConnection)
    return driver


async def fetch_row(
    conn: psycopg.AsyncConnection,
    made: Callable[..., R],
    query: LiteralString,
    parameters: Params | None = None,
    *,
    prepare: bool | None = None,
) -> R | None:
    """Return the first row of a query, or None. `made` creates the object to return from the row's columns, which are
    passed as keyword arguments.
    """
    cursor = conn.cursor(row_factory=kwargs_row(made))
    return await (await cursor.execute(query, parameters, prepare=prepare)).fetchone()


async def fetch_rows(
    conn: psycopg.AsyncConnection,
    made: Callable[..., R],
    query: LiteralString,
    parameters: Params | None = None,
    *,
    prepare: bool | None = None,
) -> list[R]:
    """Return all rows of a query. `made` creates an object from the columns of each row, which are passed as keyword
    arguments.
    """
    cursor = conn.cursor(row_factory=kwargs_row(made))
    return await (await cursor.execute(query, parameters, prepare=prepare)).fetchall()


async def fetch_value(
    conn: psycopg.AsyncConnection,
    query: LiteralString,
    parameters: Params | None = None,
    *,
    prepare: bool | None = None,
) -> Any:
    """Return the only column of the first row of a query; None if it is null or there is no row."""
    cursor = conn.cursor(row_factory=scalar_row)
    return await (await cursor.execute(query, parameters, prepare=prepare)).fetchone()


async def fetch_values(
    conn: psycopg.AsyncConnection,
    query: LiteralString,
    parameters: Params | None = None,
    *,
    prepare: bool | None = None,
) -> list[Any]:
    """Return the only column of all rows of a query."""
    cursor = conn.cursor(row_factory=scalar_row)
    return await (await cursor.execute(query, parameters, prepare=prepare)).fetchall()
