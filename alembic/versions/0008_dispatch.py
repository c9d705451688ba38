"""Tasks that wait for their node's credit, or for their node, without being in the way of others."""

from pathlib import Path
from typing import Final

import psycopg

from alembic import op

revision: Final = "0008_dispatch"
down_revision: Final = "0007_tasks"
branch_labels: Final = None
depends_on: Final = None

SQL: Final = Path(__file__).parent.parent / "sql" / revision


def upgrade() -> None:
    connection = op.get_bind().connection.driver_connection
    assert isinstance(connection, psycopg.Connection)
    connection.execute("set local role sliceplane_owner")
    connection.execute((SQL / "dispatch.sql").read_bytes())
    connection.execute("reset role")


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")
