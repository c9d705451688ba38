"""The two sets of tables that every read model has: the live one, and the one that a rebuild fills.

Both have the same names, in the schemas `read` and `idle`; all code names `read`, and a connection that is turned
to the idle set means the other with the same statements. A swap exchanges a read model's tables between the
schemas, so that nobody who reads needs to know. What is filled inside a transaction that is rolled back is
nobody's but its own: that is how the log is replayed for a comparison.
"""

from typing import Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from events.tables import metadata

LIVE: Final = "read"
IDLE: Final = "idle"


async def turn_to(conn: AsyncConnection, generation: str) -> None:
    """From now on, statements on this connection mean the tables of that set."""
    await conn.execution_options(schema_translate_map={LIVE: generation})


def generation_of(conn: AsyncConnection) -> str:
    """The set that the connection is turned to."""
    assert conn.sync_connection is not None, "the connection is open"
    translated = conn.sync_connection.get_execution_options().get("schema_translate_map", {})
    return str(translated.get(LIVE, LIVE))


def idle_metadata() -> sa.MetaData:
    """The tables of the idle set, as the migrations must have made them."""
    copies = sa.MetaData(schema=IDLE)
    for table in metadata.tables.values():
        if table.schema == LIVE:
            table.to_metadata(copies, schema=IDLE)
    return copies
