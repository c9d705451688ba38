"""Read long ranges of the ledger fast, in order, as typed events.

One statement reads the whole range and its rows are streamed. So there is one snapshot (that of the caller's
transaction, if it has one), memory for one batch regardless of the range's length, and the server continues to produce
rows while a batch is processed. The connection is busy until the range is read: writes in the meantime need another
connection. Stopping early cancels the statement, which aborts the surrounding transaction and has no other effect.

The events equal those that `events.ledger.store` reads, `Unreadable` facts included. `events.ledger.tail` determines
whether the ledger is final up to a position.
"""

import select
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, Final, TypeAlias, cast

import psycopg
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.waiting import Ready

from events.envelope import Recorded
from events.facts import Fact
from events.ledger.store import COLUMNS, events_of
from events.values import Position

BATCH: Final = 64
"""Number of events per batch. Larger batches are not faster."""
Row: TypeAlias = tuple[Any, ...]
_RANGE: Final = (
    f"select {COLUMNS} from ledger.event where position > %s and position <= %s"  # noqa: S608 (constants)
    " and type <> all(%s) order by position"
)


async def replay(
    conn: psycopg.AsyncConnection,
    after: Position,
    upto: Position,
    *,
    without: Sequence[str] = (),
    batch: int = BATCH,
) -> AsyncGenerator[list[Recorded[Fact]], None]:
    """Yield the events after one position and up to another, in order, in lists of `batch` (the last may be shorter).

    Events of the types in `without` are skipped.

    A reader that may stop before the end uses `async with aclosing(replay(...)) as batches`. Raises `ValueError`
    for a batch size below 1, and `psycopg.OperationalError` if the server is unavailable.
    """
    if batch < 1:
        raise ValueError(f"the batch size {batch} is invalid; use at least 1 event per batch")
    cursor = _ChunkCursor(conn)
    # Close the generator explicitly: until it is closed or collected, it holds the connection's lock.
    async with _in_index_order(conn), aclosing(cursor.chunks([after, upto, list(without)], batch)) as chunks:
        async for rows in chunks:
            yield events_of(rows)


class _ChunkCursor(psycopg.AsyncCursor[Row]):
    """A cursor that reads a range of `ledger.event` and returns its rows in lists. Reading events with
    `AsyncCursor.stream`, which returns one row after the other, takes a tenth longer.
    """

    async def chunks(self, parameters: Sequence[object], size: int) -> AsyncGenerator[list[Row], None]:
        """Yield the rows of the range, given by the `parameters` of `_RANGE`, in lists of `size` rows. The last
        list may be shorter.
        """
        wait = self.connection.wait
        arrived = select.poll()
        arrived.register(self.connection.fileno(), select.POLLIN)
        async with self.connection.lock:
            try:
                await wait(self._stream_send_gen(_RANGE, parameters, binary=True, size=size))
                is_first = True
                while found := await wait(_arrived_data_first(self._stream_fetchone_gen(is_first), arrived)):
                    yield self._tx.load_rows(0, found.ntuples, self._make_row)
                    is_first = False
            finally:
                if self.connection.info.transaction_status == TransactionStatus.ACTIVE:
                    await self.connection.cancel_safe()
                    # First the rows that have arrived and the error of the cancellation, then the end of the results.
                    with suppress(psycopg.Error):
                        while await wait(self._stream_fetchone_gen(first=False)):
                            pass
                    with suppress(psycopg.Error):
                        await wait(self._stream_fetchone_gen(first=False))


def _arrived_data_first(steps: PQGen[PGresult | None], arrived: select.poll) -> PQGen[PGresult | None]:
    """Run `steps`, a psycopg generator that reads from the connection, and yield only if no data has arrived.

    At each yield, the event loop waits until the socket is readable. If data has arrived, such a wait is unnecessary
    and takes longer than the read itself. psycopg lets other asyncio tasks run after 5 ms without a wait.
    """
    try:
        wanted = next(steps)
        while True:
            wanted = steps.send(Ready.R if arrived.poll(0) else (yield wanted))
    except StopIteration as end:
        return cast("PGresult | None", end.value)


@asynccontextmanager
async def _in_index_order(conn: psycopg.AsyncConnection) -> AsyncGenerator[None, None]:
    """Context manager in which PostgreSQL's planner reads rows by the index and does not sort them. Without statistics,
    as after a restore, the server would sort the whole range before it returns the first row.
    """
    await conn.execute("set enable_sort = off")
    try:
        yield
    finally:
        # A failed transaction or a broken connection discards the setting by itself.
        if conn.info.transaction_status in (TransactionStatus.IDLE, TransactionStatus.INTRANS):
            await conn.execute("reset enable_sort")
