"""Comparison of a table with its replay: the first difference in the order of the table's key.

The comparison runs in the database, within the caller's snapshot; only a row that differs is returned.
"""

from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.ext.asyncio import AsyncConnection

from events.ledger.tables import claim
from events.values import Position
from read_models.checkpoints import checkpoint
from read_models.generations import idle_metadata
from read_models.holdings import holding

Row = dict[str, Any]
LEDGER, READ_MODEL = "ledger", "read_model"


class Difference(NamedTuple):
    """The first row of a table that differs: its key, the stored row (`live`) and the expected row (`replayed`), of
    which one is None if the row is missing or superfluous. `columns` names the differing columns.

    `kind` is LEDGER for tables that only appends write: a difference there means that the ledger cannot be trusted. It
    is READ_MODEL for tables that a rebuild derives again from the ledger.
    """

    table: str
    key: Row
    columns: tuple[str, ...]
    live: Row | None
    replayed: Row | None
    kind: str


async def compare_tables(conn: AsyncConnection, table: sa.Table, upto: Position | None) -> Difference | None:
    """Return the first difference between a live table and its replay in the idle table.

    `upto` is the checkpoint of the live table, at which the comparison ends; None compares all rows.
    """
    idle = _idle(table)
    replayed = sa.select(idle) if upto is None else sa.select(idle).where(idle.c.position <= upto)
    return await first_difference(conn, table, sa.select(table), replayed, READ_MODEL)


async def compare_checkpoints(conn: AsyncConnection) -> Difference | None:
    """Return the first checkpoint, in the order of names, with a position that the ledger never assigned; None if there
    is none. Such a checkpoint was edited, and its follower would wait permanently for an event at this position.
    """
    drawn = sa.text("(select last from ledger.fence())")
    query = sa.select(checkpoint.c.name, checkpoint.c.position).where(checkpoint.c.position > drawn)
    row = (await conn.execute(query.order_by(checkpoint.c.name).limit(1))).one_or_none()
    if row is None:
        return None
    key, last = {"name": row.name}, {"position": await conn.scalar(sa.select(drawn))}
    live, replayed = {**key, "position": row.position}, {**key, **last}
    return Difference(str(checkpoint), key, ("position",), live, replayed, READ_MODEL)


async def compare_claims(conn: AsyncConnection) -> Difference | None:
    """Return the first difference between the table of claims, which appends maintain, and the last holder of each
    claim according to the replayed table `holding`; None if they are equal.
    """
    held = _idle(holding)
    names = [held.c.kind.collate("C").label("kind"), held.c.value.collate("C").label("value")]
    last = (
        sa.select(*names, held.c.stream_id)
        .ext(distinct_on(held.c.kind, held.c.value))
        .order_by(held.c.kind, held.c.value, held.c.position.desc())
        .subquery()
    )
    claims = sa.select(last).where(last.c.stream_id.is_not(None))
    return await first_difference(conn, claim, sa.select(claim), claims, LEDGER)


def _idle(table: sa.Table) -> sa.Table:
    return idle_metadata().tables[f"idle.{table.name}"]


async def first_difference(
    conn: AsyncConnection, table: sa.Table, live: sa.Select[Any], replayed: sa.Select[Any], kind: str
) -> Difference | None:
    """Return the first row, in the order of the table's key, that differs between two queries; None if none differs."""
    left, right = live.subquery("live"), replayed.subquery("replayed")
    key = [column.name for column in table.primary_key.columns]
    columns = [column.name for column in table.columns]
    same = sa.and_(*(left.c[name] == right.c[name] for name in key))
    differs = sa.or_(*(left.c[name].is_distinct_from(right.c[name]) for name in columns))
    query = (
        sa.select(
            sa.func.to_jsonb(left.table_valued()).label("stored"),
            sa.func.to_jsonb(right.table_valued()).label("expected"),
        )
        .select_from(left.join(right, same, full=True))
        .where(differs)
        .order_by(*(sa.func.coalesce(left.c[name], right.c[name]) for name in key))
        .limit(1)
    )
    row = (await conn.execute(query)).one_or_none()
    if row is None:
        return None
    stored, expected = row.stored or {}, row.expected or {}
    differing = tuple(name for name in columns if stored.get(name) != expected.get(name))
    named = {name: (stored or expected)[name] for name in key}
    return Difference(str(table), named, differing, row.stored, row.expected, kind)
