"""`read.principal`: callers with revoked tokens. The table is written in the transaction that appends the event to the
ledger, so that tokens are refused from the commit of their revocation on.
"""

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from events.ledger.tables import metadata
from events.principals import PrincipalRevoked
from read_models.rows import Patch

principal = sa.Table(
    "principal",
    metadata,
    sa.Column("actor", sa.Text, primary_key=True),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=False),
    schema="read",
)


def patch(version: int, fact: PrincipalRevoked) -> Patch:
    """Return the patch that a revocation applies to the row of its principal. `version` is the fact's version in its
    stream."""
    return Patch(fact.actor, {"version": version, "revoked_at": fact.revoked_at}, {})


async def revoked_at(conn: AsyncConnection, actor: str) -> datetime | None:
    """Return the time of the last revocation of a principal: its earlier tokens are refused. None: not revoked."""
    return await conn.scalar(sa.select(principal.c.revoked_at).where(principal.c.actor == actor))


async def version_of(conn: AsyncConnection, actor: str) -> int:
    """Return the version of a principal's stream; 0 if it was never revoked. The row is locked until the transaction
    ends."""
    query = sa.select(principal.c.version).where(principal.c.actor == actor).with_for_update()
    return await conn.scalar(query) or 0
