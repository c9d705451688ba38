"""Create the whole schema: roles, ledger, read models, operational state, functions and permissions.

The SQL is in the folder `sql/0001_baseline`, one file for each topic. A comment on the schema `ledger` has the digest
of these files, and a database that was created from another state of them is refused. Once a version of Sliceplane is
released, these files are frozen: a later change of a table or a function is a later migration.
"""

from pathlib import Path
from typing import Final

import psycopg

from alembic import op
from control_plane.schema import baseline_mark

revision: Final = "0001_baseline"
down_revision: Final = None
branch_labels: Final = None
depends_on: Final = None

SQL: Final = Path(__file__).parent.parent / "sql" / revision


def upgrade() -> None:
    connection = op.get_bind().connection.driver_connection
    assert isinstance(connection, psycopg.Connection)
    _run(connection, "roles", "schemas")
    # Every object belongs to the role that cannot log in.
    connection.execute("set local role sliceplane_owner")
    _run(connection, "ledger", "keys", "append", "fence", "swap", "leader", "work", "personal")
    # Both sets of read model tables are created from the same text, because a swap exchanges them.
    for schema in (b"read", b"idle"):
        connection.execute(b"set local search_path = " + schema)
        _run(connection, "read_models")
    connection.execute("reset search_path")
    connection.execute("reset role")
    _run(connection, "grants")
    connection.execute(f"comment on schema ledger is '{baseline_mark()}'".encode())


def _run(connection: psycopg.Connection, *topics: str) -> None:
    for topic in topics:
        connection.execute((SQL / f"{topic}.sql").read_bytes())


def downgrade() -> None:
    raise NotImplementedError("the baseline cannot be reverted; drop the database instead")
