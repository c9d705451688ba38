"""The psycopg connection under SQLAlchemy's: the same transaction, without its overhead."""

import psycopg
from sqlalchemy.ext.asyncio import AsyncConnection


async def ledger_connection(conn: AsyncConnection) -> psycopg.AsyncConnection[tuple[object, ...]]:
    """What the ledger's own calls, COPY among them, run on; begun and ended by `conn`."""
    driver = (await conn.get_raw_connection()).driver_connection
    assert isinstance(driver, psycopg.AsyncConnection)
    return driver
