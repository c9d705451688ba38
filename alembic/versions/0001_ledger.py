"""The ledger: roles, tables, the way in, the readers' fence, and who may do what.

The SQL stands in files of its own beside this folder, in the order in which it runs. It is frozen: a later
change of a function is a later migration.
"""

from pathlib import Path
from typing import Final

import psycopg

from alembic import op

revision: Final = "0001_ledger"
down_revision: Final = None
branch_labels: Final = None
depends_on: Final = None

SQL: Final = Path(__file__).parent.parent / "sql" / revision


def upgrade() -> None:
    connection = op.get_bind().connection.driver_connection
    assert isinstance(connection, psycopg.Connection)
    connection.execute(_text("roles"))
    connection.execute("set local role sliceplane_owner")
    for part in ("tables", "append", "fence"):
        connection.execute(_text(part))
    connection.execute("reset role")
    connection.execute(_text("grants"))


def _text(part: str) -> bytes:
    return (SQL / f"{part}.sql").read_bytes()


def downgrade() -> None:
    raise NotImplementedError("the ledger is never taken down; drop the database instead")
