"""`read.checkpoint`: how far each follower of the log has come.

A follower's effects and its checkpoint commit together, and the checkpoint is a compare-and-set: of two
runners that both believe they lead, one commits and the other learns it (`Overtaken`) with nothing written.
"""

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from events.tables import metadata
from events.values import Position

checkpoint = sa.Table(
    "checkpoint",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("position", sa.BigInteger, nullable=False),
    schema="read",
)


class Overtaken(Exception):
    """Another runner of the same follower has moved the checkpoint."""

    def __init__(self, name: str) -> None:
        super().__init__(f"another runner of {name} is ahead")
        self.name = name


async def load(conn: AsyncConnection, name: str) -> Position:
    """The last position that `name` has dealt with; 0 before the first."""
    await conn.execute(insert(checkpoint).values(name=name, position=0).on_conflict_do_nothing())
    found = await conn.scalar(sa.select(checkpoint.c.position).where(checkpoint.c.name == name))
    return Position(found or 0)


async def advance(conn: AsyncConnection, name: str, *, was: Position, now: Position) -> None:
    """Move the checkpoint in the caller's transaction. Raises `Overtaken`."""
    update = (
        sa.update(checkpoint)
        .where(checkpoint.c.name == name, checkpoint.c.position == was)
        .values(position=now)
    )
    if (await conn.execute(update)).rowcount != 1:
        raise Overtaken(name)
