"""Comparison of the live tables with a replay from position zero, row by row, while the system keeps working.

Everything is read in one snapshot, which has exactly the events and rows of the transactions that had committed by
then. So the rows that are written together with the events (claims, heads, keys) must equal the replay of all events in
the snapshot, whatever runs concurrently. (A follower of the ledger must never read in this way: it would miss events
that commit later. Here no later events matter.) Read models that the projector advances are compared up to their
checkpoint. The replay fills the idle set in a transaction that is rolled back, so that a crash leaves nothing behind.

The ledger is compared with itself first: a ledger that was altered may not be replayable, and skipping the event that
stops the replay, or rebuilding from it, would then destroy evidence.
"""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final

import sqlalchemy as sa
import structlog
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from control_plane.outage import DATABASE_UNAVAILABLE
from control_plane.projector.advance import in_ranges
from control_plane.projector.compare import Difference, compare_checkpoints, compare_claims, compare_tables
from control_plane.projector.compare_ledger import ledger_differences
from control_plane.projector.gathering import Gathering, Skips, skips_of
from control_plane.projector.rebuild import empty
from events.ledger.connection import ledger_connection
from events.ledger.tables import event
from events.values import Position
from read_models import checkpoints
from read_models.generations import IDLE, LIVE, use_table_set
from read_models.projections import PROJECTIONS
from read_models.rows import Span

log = structlog.get_logger()
BATCH: Final = 10_000
Report = Callable[[Position, Position], Awaitable[None]]
"""Callback for the progress of a replay: it receives the position that the replay has reached, and the position at
which it will end.
"""


async def verify(engine: AsyncEngine, report: Report) -> tuple[Position, tuple[Difference, ...]]:
    """Verify the live tables; return the compared position and the first difference of each table.

    Raises `Stopped` for an event that cannot be replayed and is not skipped, unless the ledger itself differs.
    """
    async with engine.connect() as conn, engine.connect() as reader:
        for each in (conn, reader):
            await each.execution_options(isolation_level="REPEATABLE READ")
        # Before taking the snapshot, wait for a process that fills or swaps the idle set, and lock others out.
        await empty(conn, list(PROJECTIONS.values()))
        try:
            # One connection writes while the other reads, in the same snapshot.
            snapshot = await conn.scalar(sa.select(sa.func.pg_export_snapshot()))
            await reader.execute(sa.text(f"set transaction snapshot '{snapshot}'"))
            # The reader is idle while the other connection compares the ledger and the tables, which may take minutes.
            # It holds no lock, so the role's timeout, which keeps an appender from delaying readers, is not needed.
            await reader.execute(sa.text("set local idle_in_transaction_session_timeout = 0"))
            # The other connection is idle while this process replays events, which takes long on a busy machine.
            await conn.execute(sa.text("set local idle_in_transaction_session_timeout = '1min'"))
            upto = await conn.scalar(sa.select(sa.func.max(event.c.position)))
            end = Position(upto or 0)
            found = await ledger_differences(conn)
            try:
                found += await _compared_with_replay(conn, reader, report, end)
            except DATABASE_UNAVAILABLE:
                raise
            except Exception as error:
                if not found:
                    raise
                log.warning("ledger_replay_failed_after_differences_were_found", error=str(error))
            return end, tuple(found)
        finally:
            await conn.rollback()


async def _compared_with_replay(
    conn: AsyncConnection, reader: AsyncConnection, report: Report, end: Position
) -> list[Difference]:
    skips = await skips_of(conn, list(PROJECTIONS.values()))
    await _Replay(conn, reader, report, end).run(skips)
    return await _differences(conn, skips)


class _Replay:
    """A replay of the whole ledger into the idle table set, in the transactions of its connections."""

    def __init__(self, conn: AsyncConnection, reader: AsyncConnection, report: Report, end: Position) -> None:
        self._conn, self._reader, self._report, self._end = conn, reader, report, end
        self._projections = list(PROJECTIONS.values())
        self._position = Position(0)

    async def run(self, skips: Skips) -> None:
        """Replay every event, except those that operators ordered a projection to skip."""
        await use_table_set(self._conn, IDLE)
        await self._report(self._position, self._end)
        everything = Span(self._position, self._end)
        reader = await ledger_connection(self._reader)
        async with aclosing(in_ranges(reader, self._projections, everything)) as ranges:
            gathering = Gathering(self._projections, skips)
            async for events in ranges:
                gathering.add(events)
                if gathering.events >= BATCH:
                    await self._write(gathering, events[-1].position)
            await self._write(gathering, self._end)

    async def _write(self, gathering: Gathering, upto: Position) -> None:
        # Write patches last and only once: each write would leave an old version of its row behind, and old versions
        # cannot be removed before this transaction ends.
        await gathering.write(self._conn, Span(self._position, upto), patches=upto == self._end)
        self._position = upto
        await self._report(upto, self._end)


async def _differences(conn: AsyncConnection, skips: Skips) -> list[Difference]:
    await use_table_set(conn, LIVE)
    found: list[Difference | None] = [await compare_checkpoints(conn)]
    for each in PROJECTIONS.values():
        reached: Any = None
        if not each.inline:
            checkpoint = await checkpoints.find(conn, each.name)
            reached = Position(0) if checkpoint is None else checkpoint.position
        found += [await compare_tables(conn, table, reached) for table in each.tables]
    if not skips["holdings"]:  # a replay with skipped events lacks claims that append has recorded
        found.append(await compare_claims(conn))
    return [difference for difference in found if difference is not None]
