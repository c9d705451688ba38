"""Append, made cheaper, and many commands in one transaction.

Both functions are put together from the same parts, so that there is one text of every check: a line
`-- part: NAME` stands for the file of that name.
"""

import re
from pathlib import Path
from typing import Final

import psycopg

from alembic import op

revision: Final = "0003_append"
down_revision: Final = "0002_read_and_work"
branch_labels: Final = None
depends_on: Final = None

SQL: Final = Path(__file__).parent.parent / "sql" / revision
_PART: Final = re.compile(rb"^ *-- part: (\w+)$", re.MULTILINE)


def upgrade() -> None:
    connection = op.get_bind().connection.driver_connection
    assert isinstance(connection, psycopg.Connection)
    connection.execute("set local role sliceplane_owner")
    connection.execute("drop function ledger.append(jsonb)")
    connection.execute(_text("keys"))
    connection.execute(_text("append"))
    connection.execute("reset role")
    connection.execute(_text("grants"))


def _text(part: str) -> bytes:
    return _PART.sub(lambda found: _text(found[1].decode()), (SQL / f"{part}.sql").read_bytes())


def downgrade() -> None:
    raise NotImplementedError("go back by restoring a backup")
