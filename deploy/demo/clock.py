"""The clock of the ledger while demo data are recorded: each event gets a time in the past.

The SQL functions that append stamp events with the clock of the database, and no setting of the product changes that.
For demo data, the superuser of a new database replaces them by copies that take the time from the setting
`sliceplane.demo_clock` of the transaction, and restores the originals afterwards. The ledger must be empty, and the
programs of the control plane must not run.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import psycopg
from sqlalchemy.ext.asyncio import AsyncConnection

_FUNCTIONS: Final = """
select pg_get_functiondef(oid) from pg_proc
 where pronamespace = 'ledger'::regnamespace and proname in ('append', 'append_one', 'append_many')
"""
_TRUE_TIME: Final = "clock_timestamp()"
_DEMO_TIME: Final = "current_setting('sliceplane.demo_clock')::timestamptz"
_BETWEEN_COMMANDS: Final = timedelta(milliseconds=7)


class LedgerNotEmpty(Exception):
    """Demo data cannot be recorded, because the ledger has events."""

    def __init__(self) -> None:
        super().__init__("the ledger is not empty, and demo data are recorded in an empty one only")


def require_empty_ledger(admin_dsn: str) -> None:
    """Raise `LedgerNotEmpty` if the ledger has events."""
    with psycopg.connect(admin_dsn) as conn:
        _require_empty(conn)


def _require_empty(conn: psycopg.Connection) -> None:
    if conn.execute("select from ledger.event limit 1").fetchone() is not None:
        raise LedgerNotEmpty


@contextmanager
def ledger_clock_replaced(admin_dsn: str) -> Iterator[None]:
    """Let the functions that append stamp events with `DemoClock` while the `with` block runs. Raises
    `LedgerNotEmpty`.
    """
    with psycopg.connect(admin_dsn, autocommit=True) as conn:
        _require_empty(conn)
        originals = [str(text) for (text,) in conn.execute(_FUNCTIONS)]
        for original in originals:
            assert _TRUE_TIME in original, "the functions must stamp events with clock_timestamp()"
            conn.execute(original.replace(_TRUE_TIME, _DEMO_TIME).encode())
        try:
            yield
        finally:
            for original in originals:
                conn.execute(original.encode())


@dataclass
class DemoClock:
    """Clock of the commands that record demo data. Each command advances it by 7 ms."""

    now: datetime

    def advance_to(self, moment: datetime) -> None:
        """Set the clock to a moment, unless it is later already: the times of the ledger never decrease."""
        self.now = max(self.now, moment)

    async def __call__(self, conn: AsyncConnection) -> datetime:
        """Return the time of a command, and set it for its transaction."""
        self.now += _BETWEEN_COMMANDS
        await conn.exec_driver_sql(
            "select set_config('sliceplane.demo_clock', %s, true)", (self.now.isoformat(),)
        )
        return self.now
