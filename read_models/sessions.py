"""`read.session`: the sessions of callers. The table is written in the transaction that appends the session's event to
the ledger, so that a session is accepted from its commit on, and refused from the commit of its end on.
"""

from typing import NamedTuple, assert_never

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from events.ledger.tables import metadata
from events.sessions import SessionEnded, SessionFact, SessionStarted
from events.values import SessionId
from read_models.rows import Patch

session = sa.Table(
    "session",
    metadata,
    sa.Column("session_id", sa.Text, primary_key=True),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("credential", sa.Text, nullable=False),
    sa.Column("secret_sha256", sa.Text, nullable=False, unique=True),
    sa.Column("label", sa.Text, nullable=False),
    sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("idle_seconds", sa.Integer, nullable=False),
    sa.Column("token_issued_at", sa.DateTime(timezone=True)),
    sa.Column("role", sa.Text),
    sa.Column("projects", ARRAY(sa.Text), nullable=False),
    sa.Column("scopes", ARRAY(sa.Text), nullable=False),
    sa.Column("ended", sa.Text),
    sa.Index("session_of_actor", "actor", "session_id"),
    schema="read",
)


class SessionEnd(NamedTuple):
    """The version of a session's stream, and the reason why the session was ended; the reason is None if it was not
    ended.
    """

    version: int
    ended: str | None


def patch(version: int, fact: SessionFact) -> Patch:
    """Return the patch that a fact applies to the row of its session. `version` is the fact's version in its stream."""
    match fact:
        case SessionStarted():
            born = {name: getattr(fact, name) for name in fact.__struct_fields__ if name != "session_id"}
            return Patch(fact.session_id, {"version": version}, born)
        case SessionEnded(reason=reason):
            return Patch(fact.session_id, {"version": version, "ended": reason})
        case _:
            assert_never(fact)


async def locked(conn: AsyncConnection, session_id: SessionId) -> SessionEnd | None:
    """Return the version of a session's stream and the reason of its end, or None if there is no such session. Its row
    is locked until the transaction ends.
    """
    query = sa.select(session.c.version, session.c.ended).where(session.c.session_id == session_id)
    row = (await conn.execute(query.with_for_update())).one_or_none()
    return None if row is None else SessionEnd(row.version, row.ended)
