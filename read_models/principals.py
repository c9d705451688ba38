"""`read.principal`: callers with revoked tokens or limits. The table is written in the transaction that appends the
event to the ledger, so that tokens are refused from the commit of their revocation on.
"""

from datetime import datetime
from typing import assert_never

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from events.ledger.tables import metadata
from events.principals import PrincipalFact, PrincipalLimits, PrincipalLimitsSet, PrincipalRevoked
from read_models.rows import Patch

principal = sa.Table(
    "principal",
    metadata,
    sa.Column("actor", sa.Text, primary_key=True),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("revoked_at", sa.DateTime(timezone=True)),
    sa.Column("limits", JSONB(none_as_null=True)),
    schema="read",
)


def patch(version: int, fact: PrincipalFact) -> Patch:
    """Return the patch that a fact applies to the row of its principal. `version` is the fact's version in its
    stream."""
    match fact:
        case PrincipalRevoked(revoked_at=revoked):
            return Patch(fact.actor, {"version": version, "revoked_at": revoked}, {})
        case PrincipalLimitsSet(limits=limits):
            return Patch(fact.actor, {"version": version, "limits": msgspec.to_builtins(limits)}, {})
        case _:
            assert_never(fact)


def limits_in(stored: object) -> PrincipalLimits:
    """Return the limits of a principal from the value in its row. A null stands for no limits."""
    return PrincipalLimits() if stored is None else msgspec.convert(stored, PrincipalLimits)


async def revoked_at(conn: AsyncConnection, actor: str) -> datetime | None:
    """Return the time of the last revocation of a principal: its earlier tokens are refused. None: not revoked."""
    return await conn.scalar(sa.select(principal.c.revoked_at).where(principal.c.actor == actor))


async def limits_of(conn: AsyncConnection, actor: str) -> PrincipalLimits:
    """Return the limits of a principal."""
    return limits_in(await conn.scalar(sa.select(principal.c.limits).where(principal.c.actor == actor)))


async def version_of(conn: AsyncConnection, actor: str) -> int:
    """Return the version of a principal's stream; 0 if it has no events. The row is locked until the transaction
    ends."""
    query = sa.select(principal.c.version).where(principal.c.actor == actor).with_for_update()
    return await conn.scalar(query) or 0
