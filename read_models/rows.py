"""How facts become rows: a fact is a patch of one row, and the patches of a batch are merged before they are written.

A patch assigns columns and never looks at what stood there. Merging is therefore exact, and the same patches give
the same row whether they are written one by one in the append, by the thousand in a rebuild, or only folded in
memory when the past is read. A table whose rows never change is filled by COPY instead.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from psycopg import sql
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from events.connection import ledger_connection
from read_models.generations import generation_of

_BOUND: Final = "patched_"


class Patch(NamedTuple):
    """What a fact does to the row of `key`. `born` is None where the row is there already, and otherwise what
    stands in a new row besides `columns`; a row that is there already takes the columns alone.
    """

    key: str
    columns: Mapping[str, object]
    born: Mapping[str, object] | None = None


PatchOf = Callable[[int, Any], Patch]
"""From a fact's version in its stream, and the fact, to its patch; each is for one closed union of facts."""


class RowMissing(LookupError):
    """A fact changes a row that no fact made."""

    def __init__(self, table: str, keys: Iterable[str]) -> None:
        super().__init__(f"{table} has no row for one of {', '.join(sorted(keys))}")
        self.table = table


def folded(table: sa.Table, patches: Iterable[Patch]) -> dict[str, Any] | None:
    """The row that patches of one key make, or None when there are none. Raises `RowMissing`."""
    row: dict[str, Any] | None = None
    for patch in patches:
        if row is None:
            if patch.born is None:
                raise RowMissing(table.name, [patch.key])
            row = dict.fromkeys(table.columns.keys()) | {_key(table).name: patch.key, **patch.born}
        row.update(patch.columns)
    return row


async def write(conn: AsyncConnection, table: sa.Table, patches: Iterable[Patch]) -> None:
    """Bring rows up to patches in their order. Raises `RowMissing`, and what the table's constraints refuse."""
    alike: defaultdict[tuple[bool, tuple[str, ...], tuple[str, ...]], list[Patch]] = defaultdict(list)
    for patch in _merged(patches):
        alike[patch.born is not None, tuple(patch.columns), tuple(patch.born or ())].append(patch)
    for (makes, columns, _), group in alike.items():
        if makes:
            await _insert(conn, table, columns, group)
        else:
            await _update(conn, table, columns, group)


def _merged(patches: Iterable[Patch]) -> Iterable[Patch]:
    rows: dict[str, Patch] = {}
    for patch in patches:
        before = rows.get(patch.key)
        # Whether the row was there is decided before its first patch; a later one that could make it finds it.
        rows[patch.key] = (
            patch if before is None else Patch(patch.key, {**before.columns, **patch.columns}, before.born)
        )
    return rows.values()


async def _insert(
    conn: AsyncConnection, table: sa.Table, columns: Sequence[str], group: Sequence[Patch]
) -> None:
    key = _key(table)
    statement = insert(table)
    if columns:
        replaced = {name: statement.excluded[name] for name in columns}
        statement = statement.on_conflict_do_update(index_elements=[key.name], set_=replaced)
    await conn.execute(
        statement, [{key.name: patch.key, **(patch.born or {}), **patch.columns} for patch in group]
    )


async def _update(
    conn: AsyncConnection, table: sa.Table, columns: Sequence[str], group: Sequence[Patch]
) -> None:
    key = _key(table)
    statement = (
        sa.update(table)
        .where(key == sa.bindparam(f"{_BOUND}key"))
        .values({name: sa.bindparam(_BOUND + name, type_=table.c[name].type) for name in columns})
    )
    bound = [
        {f"{_BOUND}key": patch.key, **{_BOUND + name: value for name, value in patch.columns.items()}}
        for patch in group
    ]
    if (await conn.execute(statement, bound)).rowcount != len(group):
        raise RowMissing(table.name, [patch.key for patch in group])


def _key(table: sa.Table) -> sa.Column[Any]:
    [key] = table.primary_key.columns
    return key


async def copy(conn: AsyncConnection, table: sa.Table, rows: Iterable[Sequence[object]]) -> None:
    """Add rows, all columns in the table's order."""
    name = sql.Identifier(generation_of(conn), table.name)
    cursor = (await ledger_connection(conn)).cursor()
    async with cursor.copy(sql.SQL("copy {} from stdin").format(name)) as copying:
        for row in rows:
            await copying.write_row(row)
