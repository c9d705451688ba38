"""Places in the log that readers keep between connections, and whether the log can still go on from one.

A cursor is `<epoch>.<position>` of an event that its holder has seen. Positions alone would lie after a restore: a
ledger brought back from a backup gives the same positions to other events, in a later epoch. So a cursor is held
only by a log that has at its position an event, or a dead position, of its epoch. `position:N` is for people, who
say where to begin without having seen anything; it is held up to the last position that was drawn.
"""

import re
from datetime import datetime
from typing import Final, NamedTuple, Self

import psycopg

from events.values import Epoch, InvalidValue, Position

_SEEN: Final = re.compile(r"([0-9]{1,9})\.([0-9]{1,18})")
_SAID: Final = re.compile(r"position:([0-9]{1,18})")
_HELD: Final = """
select exists (select from ledger.event where position = %(position)s and epoch = %(epoch)s)
    or exists (select from ledger.dead_position where position = %(position)s and epoch = %(epoch)s)
"""
_DRAWN: Final = "select last from ledger.fence()"
_LAST: Final = "select position, epoch, recorded_at from ledger.event where position <= %s order by position desc limit 1"


def said(raw: str) -> Position | None:
    """The position of `position:N`; None for anything else."""
    found = _SAID.fullmatch(raw)
    return Position(int(found[1])) if found else None


class Cursor(NamedTuple):
    """A place behind the event at `position`; `epoch` is None when somebody only said a position."""

    position: Position
    epoch: Epoch | None = None

    @classmethod
    def read(cls, raw: str) -> Self:
        """The cursor that is written so. Raises `InvalidValue`."""
        if seen := _SEEN.fullmatch(raw):
            return cls(Position(int(seen[2])), Epoch(int(seen[1])))
        if (position := said(raw)) is not None:
            return cls(position)
        raise InvalidValue(
            "cursor", raw[:64], "<epoch>.<position> as in an event stream's ids, or position:N"
        )

    def __str__(self) -> str:
        return f"position:{self.position}" if self.epoch is None else f"{self.epoch}.{self.position}"


BEGINNING: Final = Cursor(Position(0))


class Last(NamedTuple):
    """The last event up to somewhere."""

    position: Position
    epoch: Epoch
    recorded_at: datetime

    @property
    def cursor(self) -> Cursor:
        return Cursor(self.position, self.epoch)


async def holds(conn: psycopg.AsyncConnection, cursor: Cursor) -> bool:
    """Whether the log can go on behind the cursor without anything being missed."""
    if cursor.position == 0:
        return True
    if cursor.epoch is None:
        return cursor.position <= await drawn(conn)
    asked = await conn.execute(_HELD, {"position": cursor.position, "epoch": cursor.epoch})
    row = await asked.fetchone()
    assert row is not None
    return bool(row[0])


async def drawn(conn: psycopg.AsyncConnection) -> Position:
    """The last position that was drawn; what is there up to it may not be final yet."""
    row = await (await conn.execute(_DRAWN)).fetchone()
    assert row is not None
    return Position(row[0])


async def last_up_to(conn: psycopg.AsyncConnection, position: Position) -> Last | None:
    """The last event up to a position, which may itself hold none."""
    row = await (await conn.execute(_LAST, [position], prepare=True)).fetchone()
    return None if row is None else Last(Position(row[0]), Epoch(row[1]), row[2])
