"""The baseline of the append benchmark: inserts of the ledger's rows into plain tables with equal columns and indexes.

The tables are created from the SQLAlchemy definitions of the ledger's tables, in a separate schema of the same
database. Rows are built before the clock starts: the baseline includes the inserts, but no encoding or hashing.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import psycopg
import sqlalchemy as sa
from sqlalchemy.schema import CreateSchema, CreateTable

from control_plane.schema import admin_engine
from deploy.embedded.postgres import APP_ROLE
from events import catalog
from events.claims import claims_of
from events.envelope import Cause
from events.ledger.append import Change, LedgerCommand
from events.ledger.tables import claim, command_key, event, head
from events.values import new_uuid

SCHEMA: Final = "raw"
_LEAF: Final = bytes(range(32))
_TABLES: Final = (event, head, claim, command_key)
Row = Sequence[object]


class Insert(NamedTuple):
    """A prepared statement and the values of one row."""

    statement: str
    row: Row


def _into(table: sa.Table) -> str:
    return f"insert into {SCHEMA}.{table.name} values ({', '.join(['%s'] * len(table.columns))})"  # noqa: S608 (constants)


_EVENT: Final = _into(event)
_HEAD: Final = _into(head)
_CLAIM: Final = _into(claim)
_KEY: Final = _into(command_key)


def make_tables(admin_dsn: str) -> None:
    """Create the baseline's tables, with insert permission for the application's role."""
    copies = sa.MetaData(schema=SCHEMA)
    with admin_engine(admin_dsn).begin() as conn:
        conn.execute(CreateSchema(SCHEMA))
        conn.execute(sa.text(f"grant usage on schema {SCHEMA} to {APP_ROLE}"))
        for table in _TABLES:
            conn.execute(CreateTable(table.to_metadata(copies, schema=SCHEMA)))
            conn.execute(sa.text(f"grant insert on {SCHEMA}.{table.name} to {APP_ROLE}"))


def event_inserts(changes: Sequence[Change], cause: Cause, positions: Iterator[int]) -> Iterator[Insert]:
    """Yield the inserts of the event rows that a ledger command would write."""
    for change in changes:
        for version, fact in enumerate(change.facts, change.expected_version + 1):
            name, schema_version, data = catalog.encode(fact)
            yield Insert(
                _EVENT,
                (
                    next(positions), new_uuid(), change.stream, version, name, schema_version, cause.project,
                    cause.actor, cause.reason, cause.correlation_id, cause.causation_id, cause.trace_context,
                    cause.observed_at, cause.observed_at, 1, data, _LEAF,
                ),
            )  # fmt: skip


def command_inserts(command: LedgerCommand, positions: Iterator[int]) -> tuple[Insert, ...]:
    """Return the inserts of all rows of a command: its idempotency key, stream heads, claims and events.

    All streams of the command must be new.
    """
    changes, cause, key, answer = command
    assert key is not None
    events = tuple(event_inserts(changes, cause, positions))
    first, last = events[0].row[0], events[-1].row[0]
    key_row = (key.principal, key.route, key.key, key.body_hash, answer, first, last, cause.observed_at)
    heads = (Insert(_HEAD, (change.stream, len(change.facts))) for change in changes)
    claims = (
        Insert(_CLAIM, (*taken, change.stream))
        for change in changes
        for fact in change.facts
        for taken in claims_of(fact).takes
    )
    return Insert(_KEY, key_row), *heads, *claims, *events


async def insert_one(conn: psycopg.AsyncConnection, insert: Insert) -> None:
    """Run one prepared statement; autocommit makes it a transaction."""
    await conn.execute(insert.statement, insert.row, prepare=True)


async def insert_all(conn: psycopg.AsyncConnection, inserts: Sequence[Insert]) -> None:
    """Run one statement per row, and send all of them before reading the first result.

    With autocommit, a pipeline up to its single sync is one transaction, so BEGIN and COMMIT would only slow it down.
    """
    async with conn.pipeline(), conn.cursor() as cursor:
        for insert in inserts:
            await cursor.execute(insert.statement, insert.row, prepare=True)


def copy_out(copy_format: str) -> str:
    """Return a COPY statement, without ORDER BY, for the columns of the ledger's event table that a reader needs."""
    columns = ", ".join(column.name for column in event.columns if column.name != "leaf")
    return f"copy {event.fullname} ({columns}) to stdout (format {copy_format})"
