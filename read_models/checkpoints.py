"""`read.checkpoint`: how far each follower of the log has come, and what stopped it.

A follower's effects and its checkpoint commit together, and the checkpoint is a compare-and-set: of two
runners that both believe they lead, one commits and the other learns it (`Overtaken`) with nothing written.
A stop stands at the event that could not be dealt with, for people to see; moving on clears it.
"""

from datetime import datetime
from typing import Final, NamedTuple

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
    sa.Column("stopped_at", sa.BigInteger),
    sa.Column("stopped_since", sa.DateTime(timezone=True)),
    sa.Column("error", sa.Text),
    schema="read",
)
_RUNNING: Final = {"stopped_at": None, "stopped_since": None, "error": None}
# Made once: it stands on the way of every order.
_ADVANCE: Final = (
    sa.update(checkpoint)
    .where(checkpoint.c.name == sa.bindparam("of"), checkpoint.c.position == sa.bindparam("was"))
    .values(position=sa.bindparam("now"), **_RUNNING)
)


class Overtaken(Exception):
    """Another runner of the same follower has moved the checkpoint."""

    def __init__(self, name: str) -> None:
        super().__init__(f"another runner of {name} is ahead")
        self.name = name


class Stop(NamedTuple):
    """The event that a follower could not deal with, since when, and why."""

    at: Position
    since: datetime
    error: str


class Checkpoint(NamedTuple):
    """The last position that was dealt with, what keeps it from the next, and what it waits for without being
    stopped.
    """

    position: Position
    stop: Stop | None
    waits_for: str | None = None


async def load(conn: AsyncConnection, name: str) -> Position:
    """The last position that `name` has dealt with; 0 before the first."""
    await conn.execute(insert(checkpoint).values(name=name, position=0).on_conflict_do_nothing())
    found = await conn.scalar(sa.select(checkpoint.c.position).where(checkpoint.c.name == name))
    return Position(found or 0)


async def find(conn: AsyncConnection, name: str, *, lock: bool = False) -> Checkpoint | None:
    """The checkpoint of a follower that has begun."""
    query = sa.select(checkpoint).where(checkpoint.c.name == name)
    row = (await conn.execute(query.with_for_update() if lock else query)).one_or_none()
    if row is None:
        return None
    stop = None if row.stopped_at is None else Stop(Position(row.stopped_at), row.stopped_since, row.error)
    return Checkpoint(Position(row.position), stop, row.error if stop is None else None)


async def advance(conn: AsyncConnection, name: str, *, was: Position, now: Position) -> None:
    """Move the checkpoint in the caller's transaction. Raises `Overtaken`."""
    moved = await conn.execute(_ADVANCE, {"of": name, "was": was, "now": now})
    if moved.rowcount != 1:
        raise Overtaken(name)


async def stop(conn: AsyncConnection, name: str, *, was: Position, at: Position, error: str) -> None:
    """Say that the event at a position cannot be dealt with. Raises `Overtaken`."""
    update = (
        sa.update(checkpoint)
        .where(checkpoint.c.name == name, checkpoint.c.position == was)
        .values(stopped_at=at, stopped_since=sa.func.clock_timestamp(), error=error)
    )
    if (await conn.execute(update)).rowcount != 1:
        raise Overtaken(name)


async def wait(conn: AsyncConnection, name: str, why: str) -> None:
    """Say what a follower waits for that no event stops; moving on clears it."""
    mine = sa.and_(checkpoint.c.name == name, checkpoint.c.stopped_at.is_(None))
    await conn.execute(sa.update(checkpoint).where(mine).values(error=why))


async def begin(conn: AsyncConnection, name: str, position: Position) -> None:
    """Put the checkpoint somewhere, wherever it was: for a set of tables that was emptied or exchanged."""
    values = {"position": position, **_RUNNING}
    statement = insert(checkpoint).values(name=name, **values)
    await conn.execute(statement.on_conflict_do_update(index_elements=["name"], set_=values))
