"""The baseline of the append bench: the same rows in tables of the same columns and indexes, and nothing else.

The tables are copies of the definitions that Alembic's are checked against, in a schema of their own in the same
database. Rows are made before the clock starts: the baseline pays for the insert, and for no encoding or hashing.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import psycopg
import sqlalchemy as sa
from sqlalchemy.schema import CreateSchema, CreateTable

from deploy.embedded.postgres import APP_ROLE
from deploy.embedded.schema import admin_engine
from events import catalog
from events.append import Change, Command
from events.claims import claims_of
from events.envelope import Cause
from events.tables import claim, command_key, event, head
from events.values import new_uuid

SCHEMA: Final = "raw"
_LEAF: Final = bytes(range(32))
_TABLES: Final = (event, head, claim, command_key)
Row = Sequence[object]


class Insert(NamedTuple):
    """A prepared statement and one row for it."""

    statement: str
    row: Row


def _into(table: sa.Table) -> str:
    return f"insert into {SCHEMA}.{table.name} values ({', '.join(['%s'] * len(table.columns))})"  # noqa: S608 (constants)


_EVENT: Final = _into(event)
_HEAD: Final = _into(head)
_CLAIM: Final = _into(claim)
_KEY: Final = _into(command_key)


def make_tables(admin_dsn: str) -> None:
    """Make them, for the application's role to write."""
    copies = sa.MetaData(schema=SCHEMA)
    with admin_engine(admin_dsn).begin() as conn:
        conn.execute(CreateSchema(SCHEMA))
        conn.execute(sa.text(f"grant usage on schema {SCHEMA} to {APP_ROLE}"))
        for table in _TABLES:
            conn.execute(CreateTable(table.to_metadata(copies, schema=SCHEMA)))
            conn.execute(sa.text(f"grant insert on {SCHEMA}.{table.name} to {APP_ROLE}"))


def event_inserts(changes: Sequence[Change], cause: Cause, positions: Iterator[int]) -> Iterator[Insert]:
    """The event rows of a command."""
    for change in changes:
        for version, fact in enumerate(change.facts, change.expected_version + 1):
            name, schema_version, data = catalog.encode(fact)
            yield Insert(
                _EVENT,
                (
                    next(positions), new_uuid(), change.stream, version, name, schema_version, cause.project,
                    cause.actor, cause.why, cause.correlation_id, cause.causation_id, cause.trace_context,
                    cause.observed_at, cause.observed_at, 1, data, _LEAF,
                ),
            )  # fmt: skip


def command_inserts(command: Command, positions: Iterator[int]) -> tuple[Insert, ...]:
    """Every row that a command with a key leaves, on new streams: key, heads, claims, events."""
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
    """One prepared statement; autocommit makes it a transaction."""
    await conn.execute(insert.statement, insert.row, prepare=True)


async def insert_all(conn: psycopg.AsyncConnection, inserts: Sequence[Insert]) -> None:
    """One statement a row, all sent before the first answer is read.

    With autocommit on, a pipeline up to its one sync is a transaction, and BEGIN and COMMIT would only slow it.
    """
    async with conn.pipeline(), conn.cursor() as cursor:
        for insert in inserts:
            await cursor.execute(insert.statement, insert.row, prepare=True)


def copy_out(copy_format: str) -> str:
    """The statement that sends the ledger's own event rows, all that a reader reads of them, in no order."""
    columns = ", ".join(column.name for column in event.columns if column.name != "leaf")
    return f"copy {event.fullname} ({columns}) to stdout (format {copy_format})"
