"""The two sets of tables of every read model: the live set, and the idle set, which a rebuild fills.

Both have the same table names, in the schemas `read` and `idle`. All code names the schema `read`; on a connection that
is switched to the idle set, the same statements use the idle tables. A swap exchanges a read model's tables between the
schemas, so that readers need no change. The comparison of a read model with a replay of the ledger fills the idle set
in transactions that are rolled back, so that no other transaction sees these rows.
"""

from typing import Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from events.ledger.tables import metadata

LIVE: Final = "read"
IDLE: Final = "idle"


async def use_table_set(conn: AsyncConnection, generation: str) -> None:
    """Make later statements on this connection use the tables of the given set, live or idle."""
    await conn.execution_options(schema_translate_map={LIVE: generation})


def generation_of(conn: AsyncConnection) -> str:
    """Return the name of the set of tables, live or idle, that the connection uses."""
    assert conn.sync_connection is not None, (
        "the database connection is not open, so it uses neither set of tables"
    )
    translated = conn.sync_connection.get_execution_options().get("schema_translate_map", {})
    return str(translated.get(LIVE, LIVE))


def idle_metadata() -> sa.MetaData:
    """Return the definitions of the idle tables, for the comparison with the migrations."""
    copies = sa.MetaData(schema=IDLE)
    for table in metadata.tables.values():
        if table.schema == LIVE:
            table.to_metadata(copies, schema=IDLE)
    return copies
