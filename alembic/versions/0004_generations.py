"""A second set of tables for every read model, the history of claims, and the swap that exchanges sets."""

from pathlib import Path
from typing import Final

import psycopg

from alembic import op

revision: Final = "0004_generations"
down_revision: Final = "0003_append"
branch_labels: Final = None
depends_on: Final = None

SQL: Final = Path(__file__).parent.parent / "sql" / revision


def upgrade() -> None:
    connection = op.get_bind().connection.driver_connection
    assert isinstance(connection, psycopg.Connection)
    connection.execute((SQL / "schemas.sql").read_bytes())
    connection.execute("set local role sliceplane_owner")
    connection.execute((SQL / "tables.sql").read_bytes())
    connection.execute((SQL / "swap.sql").read_bytes())
    connection.execute("reset role")
    connection.execute((SQL / "grants.sql").read_bytes())


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")
