"""Conversion of facts to rows. A fact patches one row of a table, adds rows that never change, or adds amounts to rows
of sums.

A patch assigns columns regardless of their previous values. Merging patches is therefore exact: the same patches
produce the same row whether they are written one by one as events are appended, by the thousand in a rebuild, or only
applied in memory to compute a past state. The changes that many events make are written at once: patches of a row are
merged, amounts for a row are added up, and rows that never change are written with COPY. Rows that contain only parts
of event envelopes are copied inside the database (INSERT ... SELECT).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import psycopg
import sqlalchemy as sa
from psycopg import sql
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.ext.asyncio import AsyncConnection

from events.envelope import Recorded
from events.facts import Fact
from events.ledger.connection import ledger_connection
from events.ledger.tables import event
from events.projects import PersonalDataDestroyed
from events.values import Position, ProjectId
from read_models.generations import generation_of

_JSON: Final = msgspec.json.Encoder()
_DIALECT: Final = PGDialect_psycopg()  # type: ignore[no-untyped-call]  # SQLAlchemy does not annotate it


class Patch(NamedTuple):
    """Change of the row with the key `key` by a fact.

    `columns` are assigned to an existing row. `born` contains the additional values of a new row; it is None if the
    fact requires the row to exist.
    """

    key: str
    columns: Mapping[str, object]
    born: Mapping[str, object] | None = None


class Amounts(NamedTuple):
    """Numbers that a fact adds to the row of sums with the primary key `key`. `added` has the names of their columns as
    field names. A new row begins with sums of 0.
    """

    key: tuple[str | int, ...]
    added: Any


PatchOf = Callable[[int, Any], Patch]
"""Function that takes a fact and the fact's version in its stream, and returns the patch that the fact applies. Each
such function handles one closed union of facts."""


class RowMissing(LookupError):
    """A fact changes a row of a read model that does not exist."""

    def __init__(self, table: str, keys: Iterable[str]) -> None:
        super().__init__(
            f"table {table} has no row for one of the keys {', '.join(sorted(keys))}; rebuild the read model"
        )
        self.table = table


def folded(table: sa.Table, patches: Iterable[Patch]) -> dict[str, Any] | None:
    """Return the row that results from patches of the same key, or None without patches. Raises `RowMissing`."""
    row: dict[str, Any] | None = None
    for patch in patches:
        if row is None:
            if patch.born is None:
                raise RowMissing(table.name, [patch.key])
            row = dict.fromkeys(table.columns.keys()) | {_key(table): patch.key, **patch.born}
        row.update(patch.columns)
    return row


class Span(NamedTuple):
    """Range of the ledger: the positions above `after`, up to and including `upto`."""

    after: Position
    upto: Position


class Gathered(Protocol):
    """The changes of one table's rows by a range of the ledger, collected in memory until they are written."""

    def add(self, recorded: Recorded[Any]) -> None:
        """Collect the changes of the table's rows by one event. The caller passes the events in ledger order, and only
        events that can change the table.
        """

    async def write(self, conn: AsyncConnection, span: Span) -> None:
        """Write the collected row changes to the table. Raises `RowMissing`, and errors of the table's constraints."""


class Patched(NamedTuple):
    """A table with one row per object. `facts` are the types of facts that change its rows, and `patch` returns the
    change by one such fact.
    """

    table: sa.Table
    facts: tuple[type[Fact], ...]
    patch: PatchOf

    def gather(self) -> Gathered:
        return _Patches(self)

    def patches(self, numbered: Iterable[tuple[int, Fact]]) -> list[Patch]:
        """Return the patches by those facts that change rows of the table. `numbered` pairs each fact with its version
        in its stream.
        """
        facts, patch = self.facts, self.patch
        return [patch(version, fact) for version, fact in numbered if isinstance(fact, facts)]


Redact = Callable[[ProjectId, Position | None], sa.Update | sa.Delete]
"""Function that builds the statement that removes the personal data of a project from a table: from all rows, or from
those with a lower position.
"""


class Inserted(NamedTuple):
    """A table of immutable rows. `facts` are the types of facts that add rows; `rows` returns the rows that an event
    adds, with all columns in the table's order.

    With `redact`, the table contains personal data. An erasure, which must then be among `facts`, changes existing rows
    with this statement.
    """

    table: sa.Table
    facts: tuple[type[Fact], ...]
    rows: Callable[[Recorded[Any]], Iterable[Sequence[object]]]
    redact: Redact | None = None

    def gather(self) -> Gathered:
        return _Rows(self)


class Summed(NamedTuple):
    """A table of sums. `facts` are the types of facts that change sums; `amounts` returns what a fact adds to them.

    Each event must be added exactly once, which the checkpoint of a rebuild and the append of the event ensure.
    """

    table: sa.Table
    facts: tuple[type[Fact], ...]
    amounts: Callable[[Any], Iterable[Amounts]]

    def gather(self) -> Gathered:
        return _Sums(self)

    def amounts_of(self, numbered: Iterable[tuple[int, Fact]]) -> list[Amounts]:
        """Return what these facts, each paired with its version in its stream, add to the sums of the table."""
        return [each for _, fact in numbered if isinstance(fact, self.facts) for each in self.amounts(fact)]


class Selected(NamedTuple):
    """A table with one row per event: a query on `ledger.event` returns the parts of the envelope that the table
    stores.
    """

    table: sa.Table
    envelope: sa.Select[Any]
    facts: tuple[type[Fact], ...] = ()

    def gather(self) -> Gathered:
        return _Selection(self)


class Derived(NamedTuple):
    """A table of immutable rows that follow from events and from earlier rows of the projection. `begin` returns an
    object that collects the facts of the types `facts` and then writes the rows. A projection writes its tables in the
    order in which it lists them.
    """

    table: sa.Table
    facts: tuple[type[Fact], ...]
    begin: Callable[[], Gathered]

    def gather(self) -> Gathered:
        return self.begin()


class _Patches:
    def __init__(self, source: Patched) -> None:
        self._table, self._patch = source.table, source.patch
        self._merged: dict[str, Patch] = {}

    def add(self, recorded: Recorded[Any]) -> None:
        _merge(self._merged, self._patch(recorded.version, recorded.fact))

    async def write(self, conn: AsyncConnection, span: Span) -> None:
        merged, self._merged = self._merged, {}
        await _run(conn, _patch_statements(generation_of(conn), self._table, merged.values()))


class _Rows:
    def __init__(self, source: Inserted) -> None:
        self._table, self._rows_of, self._redact = source.table, source.rows, source.redact
        self._rows: list[Sequence[object]] = []
        self._erasures: list[tuple[ProjectId, Position]] = []

    def add(self, recorded: Recorded[Any]) -> None:
        if isinstance(recorded.fact, PersonalDataDestroyed):
            self._erasures.append((recorded.fact.project, recorded.position))
        else:
            self._rows += self._rows_of(recorded)

    async def write(self, conn: AsyncConnection, span: Span) -> None:
        rows, self._rows = self._rows, []
        if rows:
            await copy_rows(conn, self._table, rows)
        # These rows may have been read before the erasure was committed.
        erasures, self._erasures = self._erasures, []
        for project, position in erasures:
            assert self._redact is not None, f"table {self._table.name} must redact personal data"
            await conn.execute(self._redact(project, position))


class _Sums:
    def __init__(self, source: Summed) -> None:
        self._source = source
        self._added: dict[tuple[str | int, ...], Any] = {}

    def add(self, recorded: Recorded[Any]) -> None:
        _add_up(self._added, self._source.amounts(recorded.fact))

    async def write(self, conn: AsyncConnection, span: Span) -> None:
        added, self._added = self._added, {}
        await _run(conn, _sum_statements(generation_of(conn), self._source.table, added))


class _Selection:
    def __init__(self, source: Selected) -> None:
        self._source = source

    def add(self, recorded: Recorded[Any]) -> None:
        raise AssertionError(
            f"table {self._source.table.name} is filled from the envelopes of events, and must not receive facts"
        )

    async def write(self, conn: AsyncConnection, span: Span) -> None:
        table, envelope = self._source.table, self._source.envelope
        rows = envelope.where(event.c.position > span.after, event.c.position <= span.upto)
        await conn.execute(sa.insert(table).from_select(list(table.columns), rows))


async def write(conn: AsyncConnection, table: sa.Table, patches: Iterable[Patch]) -> None:
    """Write patches to the rows of a table, in their order. Raises `RowMissing`, and errors of the table's
    constraints.
    """
    await _run(conn, patch_statements(conn, table, patches))


def patch_statements(conn: AsyncConnection, table: sa.Table, patches: Iterable[Patch]) -> "list[Statement]":
    """Return the statements that write patches to the rows of a table."""
    merged: dict[str, Patch] = {}
    for patch in patches:
        _merge(merged, patch)
    return _patch_statements(generation_of(conn), table, merged.values())


def sum_statements(conn: AsyncConnection, table: sa.Table, amounts: Iterable[Amounts]) -> "list[Statement]":
    """Return the statements that add amounts to the rows of a table of sums."""
    added: dict[tuple[str | int, ...], Any] = {}
    _add_up(added, amounts)
    return _sum_statements(generation_of(conn), table, added)


class Statement(NamedTuple):
    """A statement that writes rows of a read model. `keys` are those of the rows that it must write; None: it need not
    be checked.
    """

    text: bytes
    values: Mapping[str, object]
    table: str
    keys: Sequence[str] | None

    def check(self, written: int) -> None:
        """Check that the statement wrote one row for each of `keys`, if these are given; `written` is the number of
        rows that it wrote. Raises `RowMissing`.
        """
        if self.keys is not None and written != len(self.keys):
            raise RowMissing(self.table, self.keys)


class SentStatements(NamedTuple):
    """Statements that were sent to the server in a pipeline, each with the cursor that gets its result."""

    sent: Sequence[tuple[Statement, psycopg.AsyncCursor[Any]]]

    def check(self) -> None:
        """Check, after the end of the pipeline, that each statement wrote its rows. Raises `RowMissing`."""
        for statement, cursor in self.sent:
            statement.check(cursor.rowcount)


async def send_statements(driver: psycopg.AsyncConnection, statements: Iterable[Statement]) -> SentStatements:
    """Send statements in the pipeline of the caller, in their order."""
    return SentStatements(
        [(each, await driver.execute(each.text, each.values, prepare=True)) for each in statements]
    )


async def write_together(conn: AsyncConnection, statements: Sequence[Statement]) -> None:
    """Run statements in their order, in one round trip. Raises `RowMissing`, and errors of the tables' constraints."""
    if len(statements) < 2:  # noqa: PLR2004 (a pipeline of one statement takes more round trips)
        await _run(conn, statements)
        return
    driver = await ledger_connection(conn)
    async with driver.pipeline():
        sent = await send_statements(driver, statements)
    sent.check()


async def _run(conn: AsyncConnection, statements: Iterable[Statement]) -> None:
    ledger = await ledger_connection(conn)
    for each in statements:
        each.check((await ledger.execute(each.text, each.values, prepare=True)).rowcount)


def _add_up(added: dict[tuple[str | int, ...], Any], amounts: Iterable[Amounts]) -> None:
    for key, more in amounts:
        before = added.get(key)
        # A sum of 0 stays: the live row exists too, since it was written when the first amount was added.
        added[key] = more if before is None else before.plus(more)


def _sum_statements(
    generation: str, table: sa.Table, added: Mapping[tuple[str | int, ...], Any]
) -> list[Statement]:
    if not added:
        return []
    keys = [column.name for column in table.primary_key.columns]
    # In the order of the keys, in which every transaction locks the rows.
    rows = [{**dict(zip(keys, key, strict=True)), **more._asdict()} for key, more in sorted(added.items())]
    text = _sums_text(generation, table, tuple(rows[0]))
    return [Statement(text, {"rows": _JSON.encode(rows).decode()}, table.name, None)]


@cache
def _sums_text(generation: str, table: sa.Table, names: Sequence[str]) -> bytes:
    """Build one statement that adds to the sums of any number of rows, passed as one JSON text. `names` are the names
    of all columns in the rows.
    """
    keys = [column.name for column in table.primary_key.columns]
    key = sql.SQL(", ").join(map(sql.Identifier, keys))
    sums = sql.SQL(", ").join(
        sql.SQL("{0} = sums.{0} + excluded.{0}").format(sql.Identifier(each))
        for each in names
        if each not in keys
    )
    insert = sql.SQL(
        "insert into {} as sums ({}) select * from json_to_recordset(%(rows)s::json) new ({}) order by {}"
        " on conflict ({}) do update set {}"
    ).format(
        sql.Identifier(generation, table.name),
        sql.SQL(", ").join(map(sql.Identifier, names)),
        _typed(table, names),
        key,
        key,
        sums,
    )
    return insert.as_bytes(None)


def _typed(table: sa.Table, names: Sequence[str]) -> sql.Composed:
    """Return the column definitions of a record with these columns of a table."""
    columns = [(each, table.c[each].type.compile(dialect=_DIALECT)) for each in names]
    return sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(type_)) for name, type_ in columns
    )


def _patch_statements(generation: str, table: sa.Table, merged: Iterable[Patch]) -> list[Statement]:
    groups: defaultdict[tuple[tuple[str, ...] | None, tuple[str, ...]], list[Patch]] = defaultdict(list)
    for patch in merged:
        groups[None if patch.born is None else tuple(patch.born), tuple(patch.columns)].append(patch)
    statements = list[Statement]()
    for (born, columns), group in groups.items():
        rows = [{_key(table): patch.key, **(patch.born or {}), **patch.columns} for patch in group]
        text = _patch_text(generation, table, tuple(rows[0]), columns, makes=born is not None)
        values = {"rows": _JSON.encode(rows).decode(), "count": len(rows)}
        statements.append(Statement(text, values, table.name, [patch.key for patch in group]))
    return statements


@cache
def _patch_text(
    generation: str, table: sa.Table, names: Sequence[str], columns: Sequence[str], *, makes: bool
) -> bytes:
    """Build one statement that writes any number of rows, passed as one JSON text: one statement for each row would
    take five times as long.

    `names` are the names of all columns in the rows; `columns` are the columns that are assigned if the row exists.
    """
    name, key = sql.Identifier(generation, table.name), sql.Identifier(_key(table))
    written = sql.SQL(", ").join(map(sql.Identifier, names))
    rows = sql.SQL("json_to_recordset(%(rows)s::json) new ({})").format(_typed(table, names))
    source = "excluded" if makes else "new"
    assigned = sql.SQL(", ").join(
        sql.SQL("{} = {}").format(sql.Identifier(column), sql.Identifier(source, column))
        for column in columns
    )
    if not makes:
        # Without the limit the planner assumes a hundred rows, for which it would scan a table of some thousand rows.
        update = sql.SQL(
            "update {} old set {} from (select * from {} limit %(count)s) new where old.{} = new.{}"
        )
        return update.format(name, assigned, rows, key, key).as_bytes(None)
    insert = sql.SQL("insert into {} ({}) select {} from {}").format(name, written, written, rows)
    if columns:
        insert += sql.SQL(" on conflict ({}) do update set {}").format(key, assigned)
    return insert.as_bytes(None)


def _merge(rows: dict[str, Patch], patch: Patch) -> None:
    before = rows.get(patch.key)
    # The first patch determines whether the row may be new; a later patch always finds it.
    rows[patch.key] = (
        patch if before is None else Patch(patch.key, {**before.columns, **patch.columns}, before.born)
    )


def _key(table: sa.Table) -> str:
    [key] = table.primary_key.columns
    return key.name


async def copy_rows(conn: AsyncConnection, table: sa.Table, rows: Iterable[Sequence[object]]) -> None:
    """Insert rows, each with the values of all columns in the table's order."""
    cursor = (await ledger_connection(conn)).cursor()
    async with cursor.copy(_copy_statement(generation_of(conn), table)) as copying:
        for row in rows:
            await copying.write_row(row)


@cache
def _copy_statement(generation: str, table: sa.Table) -> bytes:
    return sql.SQL("copy {} from stdin").format(sql.Identifier(generation, table.name)).as_bytes(None)
