"""`read.catalogue_entry`: the SKUs, images and app profiles, each with its newest version. The table is written in the
transaction that appends the entry's event to the ledger, because an allocation may name only entries that are offered.

Earlier versions are read from the stream of the entry.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, assert_never

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from events.entries import (
    AppProfileContent,
    AppProfilePublished,
    AppProfileRetired,
    Entry,
    EntryContent,
    EntryFact,
    ImageContent,
    ImagePublished,
    ImageRetired,
    SkuContent,
    SkuPublished,
    SkuRetired,
)
from events.ledger.tables import metadata
from events.values import EntryKind, stream_of_entry
from read_models.compiled import CompiledQueries, CompiledQuery
from read_models.pages import keyset
from read_models.rows import Patch

catalogue_entry = sa.Table(
    "catalogue_entry",
    metadata,
    sa.Column("entry", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("published", sa.Integer, nullable=False),
    sa.Column("content", JSONB, nullable=False),
    sa.Column("retired", sa.Text),
    sa.Index("catalogue_entry_by_name", "kind", "name", unique=True),
    schema="read",
)
"""`entry` is the id of the entry's stream, `version` the version of this stream, and `published` the newest version of
the entry."""
CONTENT: Final[Mapping[EntryKind, type[EntryContent]]] = {
    "sku": SkuContent,
    "image": ImageContent,
    "app_profile": AppProfileContent,
}


def entry_in(row: Mapping[Any, Any]) -> Entry:
    """Return the entry of the catalogue in a row of `read.catalogue_entry`."""
    kind: EntryKind = row["kind"]
    content = msgspec.convert(row["content"], CONTENT[kind])
    return Entry(kind, row["name"], row["version"], row["published"], content, row["retired"])


def kind_of(fact: EntryFact) -> EntryKind:
    """Return the kind of the entry that a fact concerns."""
    match fact:
        case SkuPublished() | SkuRetired():
            return "sku"
        case ImagePublished() | ImageRetired():
            return "image"
        case AppProfilePublished() | AppProfileRetired():
            return "app_profile"
        case _:
            assert_never(fact)


def patch(version: int, fact: EntryFact) -> Patch:
    """Return the patch that a fact applies to the row of its entry. `version` is the fact's version in its stream."""
    kind = kind_of(fact)
    key = stream_of_entry(kind, fact.name)
    match fact:
        case SkuPublished() | ImagePublished() | AppProfilePublished():
            content = msgspec.to_builtins(fact.content)
            columns = {"version": version, "published": fact.version, "content": content, "retired": None}
            return Patch(key, columns, {"kind": kind, "name": fact.name})
        case SkuRetired(reason=reason) | ImageRetired(reason=reason) | AppProfileRetired(reason=reason):
            return Patch(key, {"version": version, "retired": reason})
        case _:
            assert_never(fact)


async def find(
    conn: AsyncConnection, names: Iterable[tuple[EntryKind, str]], *, lock: str | None = None
) -> dict[EntryKind, Entry]:
    """Return the named entries that exist, by kind. `names` has at most one name of each kind.

    With `lock`, the rows of the entries are locked until the transaction ends, in the order of their streams: `share`
    prevents other transactions from changing the entries, `update` also from creating allocations that use them.
    """
    query, values = find_query(names, lock=lock)
    return by_kind(await query.rows(conn, values))


def find_query(
    names: Iterable[tuple[EntryKind, str]], *, lock: str | None = None
) -> tuple[CompiledQuery, Mapping[str, object]]:
    """Return the query that `find` runs, and the values of its parameters; `by_kind` reads its rows."""
    keys = [stream_of_entry(kind, name) for kind, name in names]
    return _QUERIES.get(lock, lambda: _named(lock)), {"keys": keys}


def by_kind(rows: Iterable[Mapping[str, Any]]) -> dict[EntryKind, Entry]:
    """Return the entries of the catalogue in rows of `find_query`, by kind."""
    return {each.kind: each for each in map(entry_in, rows)}


def _named(lock: str | None) -> sa.Select[tuple[object, ...]]:
    table = catalogue_entry
    keys = sa.bindparam("keys", type_=ARRAY(sa.Text))
    query = sa.select(table).where(table.c.entry == sa.any_(keys)).order_by(table.c.entry)
    return query if lock is None else query.with_for_update(read=lock == "share")


_QUERIES: Final = CompiledQueries()


async def named(conn: AsyncConnection, kind: EntryKind, names: Collection[str]) -> list[Entry]:
    """Return those of the named entries of a kind that exist, in ascending order of their names."""
    table = catalogue_entry
    query = sa.select(table).where(table.c.kind == kind, table.c.name.in_(names)).order_by(table.c.name)
    return [entry_in(row) for row in (await conn.execute(query)).mappings()]


async def offered(conn: AsyncConnection, kind: EntryKind, *, also: Collection[str] = ()) -> list[Entry]:
    """Return all entries of a kind that are not retired, and those of the names in `also` that are, ordered by name."""
    table = catalogue_entry
    wanted = sa.or_(table.c.retired.is_(None), table.c.name.in_(also)) if also else table.c.retired.is_(None)
    query = sa.select(table).where(table.c.kind == kind, wanted).order_by(table.c.name)
    return [entry_in(row) for row in (await conn.execute(query)).mappings()]


async def page(
    conn: AsyncConnection,
    kind: EntryKind,
    *,
    after: str | None,
    limit: int,
    descending: bool = False,
    retired: bool | None = None,
) -> list[Entry]:
    """Return one page of the entries of a kind, ordered by name. `retired`: only retired entries if true, only offered
    ones if false, both if None.
    """
    table = catalogue_entry
    query = sa.select(table).where(table.c.kind == kind)
    if retired is not None:
        query = query.where(table.c.retired.is_not(None) if retired else table.c.retired.is_(None))
    place = None if after is None else (after,)
    query = keyset(query, [table.c.name], place, limit, descending=descending)
    return [entry_in(row) for row in (await conn.execute(query)).mappings()]
