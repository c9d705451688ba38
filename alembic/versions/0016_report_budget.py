"""All reports of a node share one budget, and a node keeps the cursors of its newest spools."""

from pathlib import Path
from typing import Final

import psycopg

from alembic import op

revision: Final = "0016_report_budget"
down_revision: Final = "0014_exclusions"
branch_labels: Final = None
depends_on: Final = None

SQL: Final = Path(__file__).parent.parent / "sql" / revision


def upgrade() -> None:
    connection = op.get_bind().connection.driver_connection
    assert isinstance(connection, psycopg.Connection)
    connection.execute("set local role sliceplane_owner")
    connection.execute((SQL / "budget.sql").read_bytes())
    connection.execute("reset role")


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")
