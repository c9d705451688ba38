"""Access to the psycopg connection under a SQLAlchemy connection: the same transaction without SQLAlchemy's
overhead.
"""

import psycopg
from sqlalchemy.ext.asyncio import AsyncConnection


async def ledger_connection(conn: AsyncConnection) -> psycopg.AsyncConnection[tuple[object, ...]]:
    """Return the psycopg connection for the ledger's own calls, such as COPY; `conn` begins and ends its
    transactions.
    """
    driver = (await conn.get_raw_connection()).driver_connection
    assert isinstance(driver, psycopg.AsyncConnection)
    return driver
