"""Search for contradictions between the ledger's own tables. Only the first contradiction of each kind is returned.

The search needs no replay, so it also works for a ledger that cannot be replayed. It runs in the database, within the
caller's snapshot; only rows that differ are returned.

The search cannot find a change that also adjusts every dependent row. Such a change can be found only with signed tree
heads (hashes over the whole ledger) that are stored outside the database (LED-7).
"""

from typing import Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.projector.compare import LEDGER, Difference, first_difference
from events.ledger.tables import command_key, dead_position, event, head
from read_models.checkpoints import checkpoint

READS_IN_BATCHES: Final = "dispatcher"
"""Name of a follower that passes a position only after it read the event there, or recorded the position as dead
(assigned, but never used).
"""


def _leaves(table: sa.Table, kind: str) -> str:
    names = [column.name for column in table.columns]
    hashed = ", ".join("null::bytea as leaf" if name == "leaf" else name for name in names)
    return f"""
select position, encode(kept, 'hex') as kept, encode(made, 'hex') as made
  from (select e.position, e.leaf as kept,
               sha256('\\x0001{kind}'::bytea || record_send((select h from (select {hashed}) h))) as made
          from {table} e offset 0) leaves
 where made <> kept order by position limit 1
"""  # noqa: S608 (made of the tables' columns); events.ledger.merkle defines what is hashed


_LEAVES: Final = {event: _leaves(event, "01"), dead_position: _leaves(dead_position, "02")}
_VERSIONS: Final = """
select stream_id, due as version
  from (select stream_id, version, row_number() over (partition by stream_id order by version) as due
          from ledger.event) numbered
 where version <> due order by stream_id collate "C", due limit 1
"""
_POSITIONS: Final = """
with known as (select position from ledger.event union all select position from ledger.dead_position),
     upto as (select coalesce(least(max(c.position), (select max(position) from known)), 0) as position
                from read.checkpoint c where c.name = :reader),
     ends as (select position from known where position <= (select position from upto)
              union all select position + 1 from upto)
select due as position
  from (select position, lag(position, 1, 0::bigint) over (order by position) + 1 as due from ends) steps
 where position > due order by due limit 1
"""
_DEAD_AND_ALIVE: Final = """
select position from ledger.event join ledger.dead_position using (position) order by position limit 1
"""


async def ledger_differences(conn: AsyncConnection) -> list[Difference]:
    """Return the first contradiction of each kind between the ledger's tables."""
    found = [
        *[await _altered(conn, table) for table in _LEAVES],
        await _missing(conn, _VERSIONS, {}),
        await _missing(conn, _POSITIONS, {"reader": READS_IN_BATCHES}),
        await _inserted(conn),
        await _heads(conn),
        await _keys(conn),
        await _checkpoints(conn),
    ]
    return [each for each in found if each is not None]


async def _altered(conn: AsyncConnection, table: sa.Table) -> Difference | None:
    """Return the first row of a ledger table that was altered after its hash was stored."""
    row = (await conn.execute(sa.text(_LEAVES[table]))).one_or_none()
    if row is None:
        return None
    key = {"position": row.position}
    live, replayed = {**key, "leaf": row.kept}, {**key, "leaf": row.made}
    return Difference(str(table), key, ("leaf",), live, replayed, LEDGER)


async def _missing(conn: AsyncConnection, query: str, values: dict[str, str]) -> Difference | None:
    """Return the first missing event: a gap in the versions of a stream, or a position before the reader's checkpoint
    that neither has an event nor is recorded as dead (assigned, but never used).
    """
    row = (await conn.execute(sa.text(query), values)).mappings().one_or_none()
    if row is None:
        return None
    key = dict(row)
    return Difference(str(event), key, tuple(key), None, key, LEDGER)


async def _inserted(conn: AsyncConnection) -> Difference | None:
    """Return the first event that was inserted later, at a position recorded as dead (assigned, but never used)."""
    position = await conn.scalar(sa.text(_DEAD_AND_ALIVE))
    if position is None:
        return None
    key = {"position": position}
    return Difference(str(event), key, ("position",), key, None, LEDGER)


async def _heads(conn: AsyncConnection) -> Difference | None:
    """Return the first difference between the stream versions in table `head`, which appends check, and the last event
    of each stream.
    """
    version = sa.func.max(event.c.version).label("version")
    heads = sa.select(event.c.stream_id, version).group_by(event.c.stream_id)
    return await first_difference(conn, head, sa.select(head), heads, LEDGER)


async def _keys(conn: AsyncConnection) -> Difference | None:
    """Return the first idempotency key for which the ledger lacks the events that the key's row refers to."""
    first, last = command_key.c.first_position, command_key.c.last_position
    there = [sa.exists().where(event.c.position == column) for column in (first, last)]
    stray = sa.and_(first.is_not(None), sa.or_(last < first, last.is_(None), *(~each for each in there)))
    key = list(command_key.primary_key.columns)
    query = sa.select(*key, first, last).where(stray).order_by(*key).limit(1)
    row = (await conn.execute(query)).mappings().one_or_none()
    if row is None:
        return None
    names = {column.name: row[column.name] for column in key}
    return Difference(str(command_key), names, (first.name, last.name), dict(row), None, LEDGER)


async def _checkpoints(conn: AsyncConnection) -> Difference | None:
    """Return the event that is missing at the position of a checkpoint, or None. The ledger has assigned this position,
    but its last row (an event or a dead position) is at an earlier position.

    `compare.compare_checkpoints` finds a checkpoint at a position that the ledger never assigned.
    """
    drawn = sa.text("(select last from ledger.fence())")
    query = (
        sa.select(checkpoint.c.position)
        .where(checkpoint.c.position > last_known(), checkpoint.c.position <= drawn)
        .order_by(checkpoint.c.position.desc())
        .limit(1)
    )
    position = await conn.scalar(query)
    if position is None:
        return None
    key = {"position": position}
    return Difference(str(event), key, ("position",), None, key, LEDGER)


def last_known() -> sa.ColumnElement[int]:
    """Return an SQL expression for the last position that has an event or is recorded as dead (never used)."""
    end = sa.select(sa.func.max(event.c.position)).scalar_subquery()
    dead = sa.select(sa.func.max(dead_position.c.position)).scalar_subquery()
    return sa.func.greatest(end, dead, 0)
