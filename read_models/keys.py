"""`read.api_key`: the API keys. The table is written in the transaction that appends the key's event to the ledger, so
that a key works from its commit on.
"""

from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from events.access import AccessFact
from events.ledger.tables import metadata
from read_models.rows import Patch

api_key = sa.Table(
    "api_key",
    metadata,
    sa.Column("key_id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("key_sha256", sa.Text, nullable=False, unique=True),
    schema="read",
)


class Principal(NamedTuple):
    """An authenticated caller: `actor` as recorded in the ledger, and the role that determines its permissions."""

    actor: str
    role: str


def patch(_version: int, fact: AccessFact) -> Patch:
    """Return the patch that inserts the row of a new API key, which no later fact changes."""
    fields = {name: getattr(fact, name) for name in fact.__struct_fields__ if name != "key_id"}
    return Patch(fact.key_id, {}, fields)


async def principal(conn: AsyncConnection, key_sha256: str) -> Principal | None:
    """Return the holder of the API key with this SHA-256 (hex); None for an unknown key."""
    query = sa.select(api_key.c.key_id, api_key.c.role).where(api_key.c.key_sha256 == key_sha256)
    row = (await conn.execute(query)).one_or_none()
    return None if row is None else Principal(f"key:{row.key_id}", row.role)
