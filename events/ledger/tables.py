"""SQLAlchemy definitions of all tables of the product; this module defines those of the ledger.

Alembic creates the tables, a check keeps them equal to these definitions, and only the ledger's own SQL functions write
the ledger's tables. Read models and operational tables register with the same `metadata` in the modules that write
them.
"""

from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import BYTEA, UUID

SCHEMAS: Final = ("ledger", "read", "work", "keys")
metadata: Final = sa.MetaData()

_NAME: Final = sa.Text(collation="C")  # compared and ordered by bytes, equally on every server
_TIME: Final = sa.DateTime(timezone=True)

position_seq: Final = sa.Sequence(
    "position_seq", data_type=sa.BigInteger(), schema="ledger", metadata=metadata
)

event: Final = sa.Table(
    "event",
    metadata,
    sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("event_id", UUID(as_uuid=True), nullable=False),
    sa.Column("stream_id", _NAME, nullable=False),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("type", _NAME, nullable=False),
    sa.Column("schema_version", sa.SmallInteger, nullable=False),
    sa.Column("project", _NAME),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("correlation_id", UUID(as_uuid=True), nullable=False),
    sa.Column("causation_id", UUID(as_uuid=True)),
    sa.Column("trace_context", sa.Text),
    sa.Column("observed_at", _TIME, nullable=False),
    sa.Column("recorded_at", _TIME, nullable=False),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("data", sa.Text, nullable=False),
    sa.Column("leaf", BYTEA, nullable=False),
    sa.UniqueConstraint("stream_id", "version", name="event_stream_id_version_key"),
    schema="ledger",
)

project_key: Final = sa.Table(
    "project_key",
    metadata,
    sa.Column("key_id", _NAME, primary_key=True),
    sa.Column("project", _NAME, nullable=False),
    sa.Column("secret", BYTEA),
    sa.Column("created_at", _TIME, nullable=False),
    sa.Column("destroyed_at", _TIME),
    sa.Index("project_key_in_use", "project", unique=True, postgresql_where=sa.text("secret is not null")),
    sa.Index("project_key_by_age", "created_at", postgresql_where=sa.text("secret is not null")),
    schema="keys",
)

dead_position: Final = sa.Table(
    "dead_position",
    metadata,
    sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("noted_at", _TIME, nullable=False),
    sa.Column("seen_by", sa.Text, nullable=False),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("leaf", BYTEA, nullable=False),
    schema="ledger",
)

gap: Final = sa.Table(
    "gap",
    metadata,
    sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("suspects", sa.ARRAY(sa.Text), nullable=False),
    schema="ledger",
)

head: Final = sa.Table(
    "head",
    metadata,
    sa.Column("stream_id", _NAME, primary_key=True),
    sa.Column("version", sa.BigInteger, nullable=False),
    schema="ledger",
)

claim: Final = sa.Table(
    "claim",
    metadata,
    sa.Column("kind", _NAME, primary_key=True),
    sa.Column("value", _NAME, primary_key=True),
    sa.Column("stream_id", _NAME, nullable=False),
    schema="ledger",
)

command_key: Final = sa.Table(
    "command_key",
    metadata,
    sa.Column("principal", _NAME, primary_key=True),
    sa.Column("route", _NAME, primary_key=True),
    sa.Column("key", _NAME, primary_key=True),
    sa.Column("body_hash", BYTEA, nullable=False),
    sa.Column("answer", sa.Text),
    sa.Column("first_position", sa.BigInteger),
    sa.Column("last_position", sa.BigInteger),
    sa.Column("taken_at", _TIME, nullable=False),
    sa.Index(
        "command_key_taken_at", "taken_at", postgresql_using="brin", postgresql_with={"pages_per_range": 16}
    ),
    schema="ledger",
)

tree_node: Final = sa.Table(
    "tree_node",
    metadata,
    sa.Column("level", sa.SmallInteger, primary_key=True, autoincrement=False),
    sa.Column("index", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("hash", BYTEA, nullable=False),
    schema="ledger",
)

tree_head: Final = sa.Table(
    "tree_head",
    metadata,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("sealed_at", _TIME, nullable=False),
    sa.Column("signed", sa.Text, nullable=False),
    sa.Column("leaves", BYTEA, nullable=False),
    sa.Index("tree_head_size", "size", "number"),
    schema="ledger",
)

epoch: Final = sa.Table(
    "epoch",
    metadata,
    sa.Column("epoch", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("began_at", _TIME, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    schema="ledger",
)
