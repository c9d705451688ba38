"""What is different between a table and its replay, and where first, in the order of the table's key.

Compared in the database, within the caller's snapshot: only a row that differs leaves it.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.ext.asyncio import AsyncConnection

from events.tables import claim, command_key, dead_position, event, head
from events.values import Position
from read_models.checkpoints import checkpoint
from read_models.generations import idle_metadata
from read_models.holdings import holding

Row = dict[str, Any]
_COLUMNS: Final = [column.name for column in event.columns]
_HASHED: Final = ", ".join("null::bytea as leaf" if name == "leaf" else name for name in _COLUMNS)
_LEAVES: Final = f"""
select position, encode(kept, 'hex') as kept, encode(made, 'hex') as made
  from (select e.position, e.leaf as kept,
               sha256('\\x000101'::bytea || record_send((select h from (select {_HASHED}) h))) as made
          from ledger.event e offset 0) leaves
 where made <> kept order by position limit 1
"""  # noqa: S608 (made of the table's columns); events.merkle says what is hashed


class Difference(NamedTuple):
    """The first row of a table that differs: its key, and what is there (`live`) and should be (`replayed`); None for
    no such row. `columns` names what differs in it.
    """

    table: str
    key: Row
    columns: tuple[str, ...]
    live: Row | None
    replayed: Row | None


async def compare_tables(conn: AsyncConnection, table: sa.Table, upto: Position | None) -> Difference | None:
    """A live table against the idle one, or against that part of it that a follower should have come up to."""
    idle = _idle(table)
    replayed = sa.select(idle) if upto is None else sa.select(idle).where(idle.c.position <= upto)
    return await _first(conn, table, sa.select(table), replayed)


async def compare_checkpoints(conn: AsyncConnection) -> Difference | None:
    """A checkpoint behind which nothing can ever come, because the log never came so far."""
    end = sa.select(sa.func.max(event.c.position)).scalar_subquery()
    dead = sa.select(sa.func.max(dead_position.c.position)).scalar_subquery()
    drawn = sa.func.greatest(end, dead, 0)
    query = sa.select(checkpoint.c.name, checkpoint.c.position, drawn).where(checkpoint.c.position > drawn)
    row = (await conn.execute(query.order_by(checkpoint.c.name).limit(1))).one_or_none()
    if row is None:
        return None
    key, last = {"name": row[0]}, {"position": row[2]}
    return Difference(str(checkpoint), key, ("position",), {**key, "position": row[1]}, {**key, **last})


async def compare_leaves(conn: AsyncConnection) -> Difference | None:
    """The first event that is not what it was when append hashed it. Whoever changed the leaf along with it is not
    found here: that takes tree heads that are kept elsewhere (LED-7).
    """
    row = (await conn.execute(sa.text(_LEAVES))).one_or_none()
    if row is None:
        return None
    key = {"position": row.position}
    return Difference(str(event), key, ("leaf",), {**key, "leaf": row.kept}, {**key, "leaf": row.made})


async def compare_heads(conn: AsyncConnection) -> Difference | None:
    """The versions that append guards, against the events that there are."""
    heads = sa.select(event.c.stream_id, sa.func.count().label("version")).group_by(event.c.stream_id)
    return await _first(conn, head, sa.select(head), heads)


async def compare_claims(conn: AsyncConnection) -> Difference | None:
    """The claims that append keeps, against the last word on each in the idle holdings."""
    held = _idle(holding)
    names = [held.c.kind.collate("C").label("kind"), held.c.value.collate("C").label("value")]
    last = (
        sa.select(*names, held.c.stream_id)
        .ext(distinct_on(held.c.kind, held.c.value))
        .order_by(held.c.kind, held.c.value, held.c.position.desc())
        .subquery()
    )
    claims = sa.select(last).where(last.c.stream_id.is_not(None))
    return await _first(conn, claim, sa.select(claim), claims)


async def compare_keys(conn: AsyncConnection) -> Difference | None:
    """An idempotency key whose events are not in the log. (No event says under which key it came.)"""
    first, last = command_key.c.first_position, command_key.c.last_position
    there = [sa.exists().where(event.c.position == column) for column in (first, last)]
    stray = sa.and_(first.is_not(None), sa.or_(last < first, last.is_(None), *(~each for each in there)))
    key = list(command_key.primary_key.columns)
    query = sa.select(*key, first, last).where(stray).order_by(*key).limit(1)
    row = (await conn.execute(query)).mappings().one_or_none()
    if row is None:
        return None
    names = {column.name: row[column.name] for column in key}
    return Difference(str(command_key), names, (first.name, last.name), dict(row), None)


def _idle(table: sa.Table) -> sa.Table:
    return idle_metadata().tables[f"idle.{table.name}"]


async def _first(
    conn: AsyncConnection, table: sa.Table, live: sa.Select[Any], replayed: sa.Select[Any]
) -> Difference | None:
    left, right = live.subquery("live"), replayed.subquery("replayed")
    key = [column.name for column in table.primary_key.columns]
    columns = [column.name for column in table.columns]
    same = sa.and_(*(left.c[name] == right.c[name] for name in key))
    differs = sa.or_(*(left.c[name].is_distinct_from(right.c[name]) for name in columns))
    query = (
        sa.select(sa.func.to_jsonb(left.table_valued()), sa.func.to_jsonb(right.table_valued()))
        .select_from(left.join(right, same, full=True))
        .where(differs)
        .order_by(*(sa.func.coalesce(left.c[name], right.c[name]) for name in key))
        .limit(1)
    )
    row = (await conn.execute(query)).one_or_none()
    return None if row is None else _named(str(table), key, columns, row[0], row[1])


def _named(
    table: str, key: Sequence[str], columns: Sequence[str], live: Row | None, replayed: Row | None
) -> Difference:
    there = live or replayed or {}
    differing = tuple(name for name in columns if (live or {}).get(name) != (replayed or {}).get(name))
    return Difference(table, {name: there[name] for name in key}, differing, live, replayed)
