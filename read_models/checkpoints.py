"""`read.checkpoint`: the position of each follower of the ledger, and the event that stopped it, if any.

A follower writes its results and its checkpoint in one transaction, and the checkpoint is advanced by compare-and-set:
if two processes run the same follower, one commits, and the other gets `CheckpointSuperseded` and writes nothing. A
stop names the event that could not be processed, so that operators can see it; advancing the checkpoint clears the
stop.
"""

from datetime import datetime
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from events.ledger.tables import metadata
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
# Built once, because every order passes through this statement.
_ADVANCE: Final = (
    sa.update(checkpoint)
    .where(
        checkpoint.c.name == sa.any_(sa.bindparam("of", type_=ARRAY(sa.Text))),
        checkpoint.c.position == sa.bindparam("was"),
    )
    .values(position=sa.bindparam("now"), **_RUNNING)
)


class CheckpointSuperseded(Exception):
    """Another process that runs the same follower has advanced the checkpoint."""

    def __init__(self, name: str) -> None:
        super().__init__(f"another process of follower {name} has advanced its checkpoint; stop this process")
        self.name = name


class Stop(NamedTuple):
    """Stop of a follower of the ledger: the event that the follower could not process, the time of the stop, and the
    error.
    """

    at: Position
    since: datetime
    error: str


class Checkpoint(NamedTuple):
    """Checkpoint of a follower: the last processed position, and the event that stopped it or the reason why it
    waits.
    """

    position: Position
    stop: Stop | None
    waits_for: str | None = None


async def load(conn: AsyncConnection, name: str) -> Position:
    """Return the last position that the follower `name` has processed; 0 before the first event."""
    await conn.execute(insert(checkpoint).values(name=name, position=0).on_conflict_do_nothing())
    found = await conn.scalar(sa.select(checkpoint.c.position).where(checkpoint.c.name == name))
    return Position(found or 0)


async def find(conn: AsyncConnection, name: str, *, lock: bool = False) -> Checkpoint | None:
    """Return the checkpoint of a follower; None if it has never run."""
    query = sa.select(checkpoint).where(checkpoint.c.name == name)
    row = (await conn.execute(query.with_for_update() if lock else query)).one_or_none()
    if row is None:
        return None
    stop = None if row.stopped_at is None else Stop(Position(row.stopped_at), row.stopped_since, row.error)
    return Checkpoint(Position(row.position), stop, row.error if stop is None else None)


async def advance(conn: AsyncConnection, *names: str, was: Position, now: Position) -> None:
    """Advance the checkpoints of followers that are at one position, in the caller's transaction.

    Raises `CheckpointSuperseded` if one of them is at another position.
    """
    moved = await conn.execute(_ADVANCE, {"of": [*names], "was": was, "now": now})
    if moved.rowcount != len(names):
        raise CheckpointSuperseded(", ".join(names))


async def stop(conn: AsyncConnection, name: str, *, was: Position, at: Position, error: str) -> None:
    """Record that a follower is stopped by an event that it cannot process. Raises `CheckpointSuperseded`."""
    update = (
        sa.update(checkpoint)
        .where(checkpoint.c.name == name, checkpoint.c.position == was)
        .values(stopped_at=at, stopped_since=sa.func.clock_timestamp(), error=error)
    )
    if (await conn.execute(update)).rowcount != 1:
        raise CheckpointSuperseded(name)


async def wait(conn: AsyncConnection, name: str, reason: str) -> None:
    """Record the reason why a follower waits, unless an event has stopped it; advancing the checkpoint clears the
    reason.
    """
    not_stopped = sa.and_(checkpoint.c.name == name, checkpoint.c.stopped_at.is_(None))
    await conn.execute(sa.update(checkpoint).where(not_stopped).values(error=reason))


async def begin(conn: AsyncConnection, name: str, position: Position) -> None:
    """Set a follower's checkpoint to a position unconditionally, after the follower's tables were emptied or
    swapped.
    """
    values = {"position": position, **_RUNNING}
    statement = insert(checkpoint).values(name=name, **values)
    await conn.execute(statement.on_conflict_do_update(index_elements=["name"], set_=values))
