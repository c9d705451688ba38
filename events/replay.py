"""Reading long stretches of the ledger fast, in order, as typed events.

One statement reads the whole stretch and its rows are streamed. So there is one snapshot (that of the caller's
transaction, where it has one), memory for one batch however long the stretch, and the server goes on producing
while a batch is used. In return the connection is busy until the end: whoever writes meanwhile does so on another
one. Who stops early has the statement cancelled, which aborts a transaction that it ran in; nothing else is left.

What is read is what `events.store` reads, object for object, `Unreadable` facts among them. Whether the log is final
up to a position is for `events.tail` to say.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final, TypeAlias

import psycopg
from psycopg.pq import TransactionStatus

from events.catalog import READERS
from events.envelope import Cause, Recorded
from events.facts import Fact
from events.shapes import MISREAD
from events.store import COLUMNS, recorded
from events.values import Position

BATCH: Final = 64
"""So few that Python's garbage collector, which looks at what is alive whenever there are 700 objects more, finds no
occasion: an event is eight of them, and twice the batch takes half as long again for each event."""
Row: TypeAlias = tuple[Any, ...]
_STRETCH: Final = (
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
    """The events after one position and up to another, in order, in lists of `batch` (the last may be shorter).

    Those of the types in `without` are left out.

    For a reader that may stop before the end: `async with aclosing(replay(...)) as batches`. Raises `ValueError`
    for an empty batch, and `psycopg.OperationalError` when the server is away.
    """
    if batch < 1:
        raise ValueError(f"a batch holds at least one event, not {batch}")
    rows: list[Row] = []
    streamed = conn.cursor().stream(_STRETCH, [after, upto, list(without)], binary=True, size=batch)
    assert isinstance(streamed, AsyncGenerator)
    # Closed here and not when it is collected: until then it holds the connection's lock.
    async with _in_index_order(conn), aclosing(streamed):
        async for row in streamed:
            rows.append(row)
            if len(rows) == batch:
                yield _typed(rows)
                rows.clear()
    if rows:
        yield _typed(rows)


@asynccontextmanager
async def _in_index_order(conn: psycopg.AsyncConnection) -> AsyncGenerator[None, None]:
    """Without statistics, as after a restore, the planner would sort all of it before the first row comes."""
    await conn.execute("set enable_sort = off")
    try:
        yield
    finally:
        # A failed transaction, or one on a connection that died, takes the setting along.
        if conn.info.transaction_status in (TransactionStatus.IDLE, TransactionStatus.INTRANS):
            await conn.execute("reset enable_sort")


def _typed(rows: Sequence[Row]) -> list[Recorded[Fact]]:
    """What `recorded` makes of each, without a call of it for each; it is left to say what cannot be read, and why."""
    try:
        return [
            Recorded(
                position, event_id, stream, version, READERS[type_, schema_version](data),
                Cause(actor, why, correlation_id, observed_at, project, causation_id, trace_context),
                recorded_at, epoch,
            )
            for position, event_id, stream, version, type_, schema_version, project, actor, why, correlation_id,
            causation_id, trace_context, observed_at, recorded_at, epoch, data in rows
        ]  # fmt: skip
    except MISREAD:
        return [recorded(row) for row in rows]
