"""Queries that are compiled once and run by psycopg.

For a short query, SQLAlchemy needs several times the processor time that Postgres needs: it builds the expression,
finds the compiled text in its cache, and prepares the columns of the result. Commands that run hundreds of times per
second therefore keep the text of their queries.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, LiteralString, NamedTuple

import psycopg
import sqlalchemy as sa
from psycopg.rows import dict_row
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.ext.asyncio import AsyncConnection

from events.ledger.connection import ledger_connection

_DIALECT: Final = PGDialect_psycopg()  # type: ignore[no-untyped-call]  # SQLAlchemy does not annotate it
_MOST: Final = 256
"""Number of texts that one `CompiledQueries` keeps."""


class CompiledQuery:
    """The text of a query. Its named parameters (`sa.bindparam`) get their values in each call; other values in the
    expression are those of its construction. A parameter must not need a conversion by SQLAlchemy, as JSON does.
    """

    def __init__(self, query: "sa.SelectBase | sa.Insert | sa.Delete") -> None:
        compiled = query.compile(dialect=_DIALECT)
        self._text: LiteralString = compiled.string
        self._values = dict(compiled.params)

    async def rows(self, conn: AsyncConnection, values: Mapping[str, object]) -> list[dict[str, Any]]:
        """Return all rows, in the transaction of the connection, which must have begun."""
        return await (await self._sent(await ledger_connection(conn), values)).fetchall()

    async def _sent(
        self, driver: psycopg.AsyncConnection, values: Mapping[str, object]
    ) -> psycopg.AsyncCursor[dict[str, Any]]:
        cursor = driver.cursor(row_factory=dict_row)
        return await cursor.execute(self._text, {**self._values, **values}, prepare=True)


Query = tuple[CompiledQuery, Mapping[str, object]]
"""A query with the values of its parameters."""
Rows = list[dict[str, Any]]


async def rows_together(conn: AsyncConnection, *queries: Query) -> list[Rows]:
    """Return the rows of several queries, each with its values, like `CompiledQuery.rows`.

    All queries take one round trip. The server runs them in their order, each with a snapshot of its own.
    """
    driver = await ledger_connection(conn)
    async with driver.pipeline():
        sent = await send(driver, queries)
    return await sent.rows()


class SentQueries(NamedTuple):
    """Queries that were sent in a pipeline, with results that may still be on their way from the server."""

    cursors: Sequence[psycopg.AsyncCursor[dict[str, Any]]]

    async def rows(self) -> list[Rows]:
        """Return the rows of each query, in the order in which the queries were sent."""
        return [await cursor.fetchall() for cursor in self.cursors]


async def send(driver: psycopg.AsyncConnection, queries: Iterable[Query]) -> SentQueries:
    """Send several queries in the pipeline of the caller."""
    return SentQueries([await query._sent(driver, values) for query, values in queries])  # noqa: SLF001 (same module)


async def run_together(
    conn: AsyncConnection, statements: Iterable[CompiledQuery], values: Mapping[str, object]
) -> None:
    """Run several statements without results in one round trip, each with the same values."""
    driver = await ledger_connection(conn)
    async with driver.pipeline():
        await send(driver, [(each, values) for each in statements])


class CompiledQueries:
    """The texts of queries that `build` constructs. Two arguments of `build` with the same form get the same text: the
    queries must differ in the values of named parameters only.
    """

    def __init__(self) -> None:
        self._found: dict[object, CompiledQuery] = {}

    def get(self, form: object, build: Callable[[], sa.SelectBase]) -> CompiledQuery:
        """Return the compiled query for a form; if the form is new, compile the query that `build` constructs."""
        found = self._found.get(form)
        if found is None:
            if len(self._found) >= _MOST:
                self._found.clear()
            found = self._found[form] = CompiledQuery(build())
        return found
