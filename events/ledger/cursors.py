"""Cursors: positions in the ledger that readers keep between connections, and the check whether one is still valid.

A cursor is the `<epoch>.<position>` of an event that its reader has received. A position alone is ambiguous after a
restore: a ledger restored from a backup assigns the same positions to other events, in a later epoch. So a cursor is
valid only if the ledger has an event, or a dead position, of its epoch at its position. With `position:N`, a
user chooses a starting point without having read an event; it is valid up to the last position that was assigned.
"""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple, Self

import psycopg

from events.ledger.connection import fetch_value
from events.values import Epoch, InvalidValue, Position

_SEEN: Final = re.compile(r"([0-9]{1,9})\.([0-9]{1,18})")
_POSITION: Final = re.compile(r"position:([0-9]{1,18})")
_HELD: Final = """
select exists (select from ledger.event where position = %(position)s and epoch = %(epoch)s)
    or exists (select from ledger.dead_position where position = %(position)s and epoch = %(epoch)s)
"""
_DRAWN: Final = "select last from ledger.fence()"
_LASTS: Final = """
select last.position, last.epoch, last.recorded_at
  from unnest(%s::bigint[]) with ordinality as wanted(upto, number)
  left join lateral (select e.position, e.epoch, e.recorded_at from ledger.event e
                      where e.position <= wanted.upto order by e.position desc limit 1) as last on true
 order by wanted.number
"""


def parse_position(raw: str) -> Position | None:
    """Return the number N of a cursor written as `position:N`; None for any other text."""
    found = _POSITION.fullmatch(raw)
    return Position(int(found[1])) if found else None


class Cursor(NamedTuple):
    """Cursor after the event at `position`; `epoch` is None if the cursor was written as `position:N`."""

    position: Position
    epoch: Epoch | None = None

    @classmethod
    def read(cls, raw: str) -> Self:
        """Parse a ledger cursor, `<epoch>.<position>`. Raises `InvalidValue` for any other text."""
        if seen := _SEEN.fullmatch(raw):
            return cls(Position(int(seen[2])), Epoch(int(seen[1])))
        if (position := parse_position(raw)) is not None:
            return cls(position)
        raise InvalidValue(
            "cursor", raw[:64], "use <epoch>.<position> as in the ids of an event stream, or position:N"
        )

    def __str__(self) -> str:
        return f"position:{self.position}" if self.epoch is None else f"{self.epoch}.{self.position}"


BEGINNING: Final = Cursor(Position(0))


class Last(NamedTuple):
    """The last event at or before a given position of the ledger."""

    position: Position
    epoch: Epoch
    recorded_at: datetime

    @property
    def cursor(self) -> Cursor:
        return Cursor(self.position, self.epoch)


async def holds(conn: psycopg.AsyncConnection, cursor: Cursor) -> bool:
    """Return whether the cursor is valid: a reader can continue after it without skipping an event."""
    if cursor.position == 0:
        return True
    if cursor.epoch is None:
        return cursor.position <= await drawn(conn)
    return bool(await fetch_value(conn, _HELD, {"position": cursor.position, "epoch": cursor.epoch}))


async def drawn(conn: psycopg.AsyncConnection) -> Position:
    """Return the last position that the ledger assigned; positions up to it may not be final yet."""
    return Position(await fetch_value(conn, _DRAWN))


async def last_up_to(conn: psycopg.AsyncConnection, position: Position) -> Last | None:
    """Return the last event at or before a position; None if there is none. The position itself may have no event."""
    [last] = await lasts_up_to(conn, [position])
    return last


async def lasts_up_to(
    conn: psycopg.AsyncConnection, positions: Sequence[Position]
) -> tuple[Last | None, ...]:
    """Return for each position the last event at or before it; None if there is none."""
    rows = await (await conn.execute(_LASTS, [[*positions]], prepare=True)).fetchall()
    return tuple(None if row[0] is None else Last(*row) for row in rows)
