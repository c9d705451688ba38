"""How facts become rows. A fact is a patch of one row of its table, or it adds rows that never change.

A patch assigns columns and never looks at what stood there. Merging is therefore exact, and the same patches give
the same row whether they are written one by one in the append, by the thousand in a rebuild, or only folded in
memory when the past is read. What is gathered from many events is written at once: patches merged, rows by COPY.
What needs no fact, only what stands around it, never leaves the database.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import sqlalchemy as sa
from psycopg import sql
from sqlalchemy.ext.asyncio import AsyncConnection

from events.connection import ledger_connection
from events.envelope import Recorded
from events.facts import Fact
from events.tables import event
from events.values import Position
from read_models.generations import generation_of

_JSON: Final = msgspec.json.Encoder()


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
            row = dict.fromkeys(table.columns.keys()) | {_key(table): patch.key, **patch.born}
        row.update(patch.columns)
    return row


class Span(NamedTuple):
    """The part of the log behind one position and up to another."""

    after: Position
    upto: Position


class Gathered(Protocol):
    """What a span of the log does to one table, collected in memory until it is written."""

    def add(self, recorded: Recorded[Any]) -> None:
        """Take in the next event of the log that concerns the table."""

    async def write(self, conn: AsyncConnection, span: Span) -> None:
        """Bring the table up to the span. Raises what the table's constraints refuse, and `RowMissing`."""


class Patched(NamedTuple):
    """A table with a row for each thing: the facts that concern it, and what each does to a row."""

    table: sa.Table
    facts: tuple[type[Fact], ...]
    patch: PatchOf

    def gather(self) -> Gathered:
        return _Patches(self)

    def patches(self, numbered: Iterable[tuple[int, Fact]]) -> list[Patch]:
        """The patches of facts, each with its version in its stream."""
        facts, patch = self.facts, self.patch
        return [patch(version, fact) for version, fact in numbered if isinstance(fact, facts)]


class Inserted(NamedTuple):
    """A table of rows that never change: the facts that concern it, and the rows that an event adds, each with all
    columns in the table's order.
    """

    table: sa.Table
    facts: tuple[type[Fact], ...]
    rows: Callable[[Recorded[Any]], Iterable[Sequence[object]]]

    def gather(self) -> Gathered:
        return _Rows(self)


class Selected(NamedTuple):
    """A table with a row for every event: what of its envelope stands there, as a select on `ledger.event`."""

    table: sa.Table
    envelope: sa.Select[Any]
    facts: tuple[type[Fact], ...] = ()

    def gather(self) -> Gathered:
        return _Selection(self)


class _Patches:
    def __init__(self, of: Patched) -> None:
        self._table, self._patch = of.table, of.patch
        self._merged: dict[str, Patch] = {}

    def add(self, recorded: Recorded[Any]) -> None:
        _merge(self._merged, self._patch(recorded.version, recorded.fact))

    async def write(self, conn: AsyncConnection, span: Span) -> None:
        merged, self._merged = self._merged, {}
        await _write(conn, self._table, merged.values())


class _Rows:
    def __init__(self, of: Inserted) -> None:
        self._table, self._of = of.table, of.rows
        self._rows: list[Sequence[object]] = []

    def add(self, recorded: Recorded[Any]) -> None:
        self._rows += self._of(recorded)

    async def write(self, conn: AsyncConnection, span: Span) -> None:
        rows, self._rows = self._rows, []
        if rows:
            await _copy(conn, self._table, rows)


class _Selection:
    def __init__(self, of: Selected) -> None:
        self._of = of

    def add(self, recorded: Recorded[Any]) -> None:
        raise AssertionError("no fact concerns it")

    async def write(self, conn: AsyncConnection, span: Span) -> None:
        table, envelope = self._of.table, self._of.envelope
        rows = envelope.where(event.c.position > span.after, event.c.position <= span.upto)
        await conn.execute(sa.insert(table).from_select(list(table.columns), rows))


async def write(conn: AsyncConnection, table: sa.Table, patches: Iterable[Patch]) -> None:
    """Bring rows up to patches in their order. Raises `RowMissing`, and what the table's constraints refuse."""
    merged: dict[str, Patch] = {}
    for patch in patches:
        _merge(merged, patch)
    await _write(conn, table, merged.values())


async def _write(conn: AsyncConnection, table: sa.Table, merged: Iterable[Patch]) -> None:
    alike: defaultdict[tuple[tuple[str, ...] | None, tuple[str, ...]], list[Patch]] = defaultdict(list)
    for patch in merged:
        alike[None if patch.born is None else tuple(patch.born), tuple(patch.columns)].append(patch)
    for (born, columns), group in alike.items():
        rows = [{_key(table): patch.key, **(patch.born or {}), **patch.columns} for patch in group]
        types = {name: table.c[name].type.compile(dialect=conn.dialect) for name in rows[0]}
        statement = _statement(generation_of(conn), table, types, columns, makes=born is not None)
        ledger = await ledger_connection(conn)
        values = {"rows": _JSON.encode(rows).decode(), "count": len(rows)}
        written = await ledger.execute(statement, values, prepare=True)
        if written.rowcount != len(group):
            raise RowMissing(table.name, [patch.key for patch in group])


def _statement(
    generation: str, table: sa.Table, types: Mapping[str, str], columns: Sequence[str], *, makes: bool
) -> sql.Composed:
    """One statement for any number of rows, which come as one JSON text: a statement each takes five times as long.

    `types` are those of all columns that the rows give, `columns` those that an existing row takes.
    """
    name, key = sql.Identifier(generation, table.name), sql.Identifier(_key(table))
    names = sql.SQL(", ").join(map(sql.Identifier, types))
    typed = [sql.SQL("{} {}").format(sql.Identifier(each), sql.SQL(types[each])) for each in types]
    rows = sql.SQL("json_to_recordset(%(rows)s::json) new ({})").format(sql.SQL(", ").join(typed))
    source = "excluded" if makes else "new"
    assigned = sql.SQL(", ").join(
        sql.SQL("{} = {}").format(sql.Identifier(column), sql.Identifier(source, column))
        for column in columns
    )
    if not makes:
        # The planner takes the function for a hundred rows, for which it would read a table of some thousand whole.
        update = sql.SQL(
            "update {} old set {} from (select * from {} limit %(count)s) new where old.{} = new.{}"
        )
        return update.format(name, assigned, rows, key, key)
    insert = sql.SQL("insert into {} ({}) select {} from {}").format(name, names, names, rows)
    if columns:
        insert += sql.SQL(" on conflict ({}) do update set {}").format(key, assigned)
    return insert


def _merge(rows: dict[str, Patch], patch: Patch) -> None:
    before = rows.get(patch.key)
    # Whether the row was there is decided before its first patch; a later one that could make it finds it.
    rows[patch.key] = (
        patch if before is None else Patch(patch.key, {**before.columns, **patch.columns}, before.born)
    )


def _key(table: sa.Table) -> str:
    [key] = table.primary_key.columns
    return key.name


async def _copy(conn: AsyncConnection, table: sa.Table, rows: Iterable[Sequence[object]]) -> None:
    name = sql.Identifier(generation_of(conn), table.name)
    cursor = (await ledger_connection(conn)).cursor()
    async with cursor.copy(sql.SQL("copy {} from stdin").format(name)) as copying:
        for row in rows:
            await copying.write_row(row)
