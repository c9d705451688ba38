"""Append, made cheaper, and many commands in one transaction."""

from pathlib import Path
from typing import Final

import psycopg

from alembic import op

revision: Final = "0003_append"
down_revision: Final = "0002_read_and_work"
branch_labels: Final = None
depends_on: Final = None

SQL: Final = Path(__file__).parent.parent / "sql" / revision


def upgrade() -> None:
    connection = op.get_bind().connection.driver_connection
    assert isinstance(connection, psycopg.Connection)
    for part in sorted(SQL.glob("*.sql")):
        connection.execute(part.read_bytes())


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")
