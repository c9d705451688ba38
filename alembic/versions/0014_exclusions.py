"""Failed bring-ups and exclusions from placement are columns of nodes and slots."""

from pathlib import Path
from typing import Final

import psycopg

from alembic import op

revision: Final = "0014_exclusions"
down_revision: Final = "0013_devices"
branch_labels: Final = None
depends_on: Final = None

SQL: Final = Path(__file__).parent.parent / "sql" / revision


def upgrade() -> None:
    connection = op.get_bind().connection.driver_connection
    assert isinstance(connection, psycopg.Connection)
    connection.execute("set local role sliceplane_owner")
    connection.execute((SQL / "columns.sql").read_bytes())
    connection.execute("reset role")


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")
