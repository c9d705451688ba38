"""Comparing the live tables with a replay from position zero, row for row, while everybody goes on working.

One snapshot holds it all: a snapshot has exactly the events and exactly the rows of the transactions that were
committed by then, so that rows which append itself writes must equal the replay of all events in it, whatever
is under way beside it. (A follower of the log may never read that way: it would not see what commits later. Here
nothing comes later.) Read models that the projector brings up are compared up to their checkpoint. The replay
fills the idle set in a transaction that is rolled back, so that a crash leaves nothing.

The ledger is compared with itself first, because a ledger that was changed may not be replayable, and advice to skip
the event that stops the replay, or to rebuild from it, would then destroy evidence.
"""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final

import sqlalchemy as sa
import structlog
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from control_plane.outage import DATABASE_AWAY
from control_plane.projector.advance import in_stretches
from control_plane.projector.compare import Difference, compare_checkpoints, compare_claims, compare_tables
from control_plane.projector.compare_ledger import ledger_differences
from control_plane.projector.gathering import Gathering, Skips, skips_of
from control_plane.projector.rebuild import empty
from events.connection import ledger_connection
from events.tables import event
from events.values import Position
from read_models import checkpoints
from read_models.generations import IDLE, LIVE, turn_to
from read_models.projections import PROJECTIONS
from read_models.rows import Span

log = structlog.get_logger()
BATCH: Final = 10_000
Told = Callable[[Position, Position], Awaitable[None]]
"""Told the position that the replay has reached, and the one it will end at."""


async def verify(engine: AsyncEngine, told: Told) -> tuple[Position, tuple[Difference, ...]]:
    """The position that was compared, and each table's first difference. Raises `Stopped` for an event that no
    projection passes over and that cannot be replayed, unless the ledger itself differs.
    """
    async with engine.connect() as conn, engine.connect() as reader:
        for each in (conn, reader):
            await each.execution_options(isolation_level="REPEATABLE READ")
        # Before the snapshot is taken: whoever fills the idle set, or swaps it, is waited for and then kept out.
        await empty(conn, list(PROJECTIONS.values()))
        try:
            # One writes while the other reads, and both see the same.
            snapshot = await conn.scalar(sa.select(sa.func.pg_export_snapshot()))
            await reader.execute(sa.text(f"set transaction snapshot '{snapshot}'"))
            # It is idle while the other connection compares the ledger and the tables, which may take minutes, and it
            # holds no lock: the limit of the role, which keeps an appender from delaying readers, would end it.
            await reader.execute(sa.text("set local idle_in_transaction_session_timeout = 0"))
            upto = await conn.scalar(sa.select(sa.func.max(event.c.position)))
            end = Position(upto or 0)
            found = await ledger_differences(conn)
            try:
                found += await _compared_with_replay(conn, reader, told, end)
            except DATABASE_AWAY:
                raise
            except Exception as error:
                if not found:
                    raise
                log.warning("changed_ledger_cannot_be_replayed", error=str(error))
            return end, tuple(found)
        finally:
            await conn.rollback()


async def _compared_with_replay(
    conn: AsyncConnection, reader: AsyncConnection, told: Told, end: Position
) -> list[Difference]:
    skips = await skips_of(conn, list(PROJECTIONS.values()))
    await _Replay(conn, reader, told, end).run(skips)
    return await _differences(conn, skips)


class _Replay:
    """Fills the idle set from the whole log, in the transactions of its connections."""

    def __init__(self, conn: AsyncConnection, reader: AsyncConnection, told: Told, end: Position) -> None:
        self._conn, self._reader, self._told, self._end = conn, reader, told, end
        self._projections = list(PROJECTIONS.values())
        self._position = Position(0)

    async def run(self, skips: Skips) -> None:
        await turn_to(self._conn, IDLE)
        await self._told(self._position, self._end)
        everything = Span(self._position, self._end)
        reader = await ledger_connection(self._reader)
        async with aclosing(in_stretches(reader, self._projections, everything)) as stretches:
            gathering = Gathering(self._projections, skips)
            async for events in stretches:
                gathering.add(events)
                if gathering.events >= BATCH:
                    await self._write(gathering, events[-1].position)
            await self._write(gathering, self._end)

    async def _write(self, gathering: Gathering, upto: Position) -> None:
        # Patches last, all at once: written again and again, a row would leave a version behind each time, and none of
        # them can go before this transaction ends.
        await gathering.write(self._conn, Span(self._position, upto), patches=upto == self._end)
        self._position = upto
        await self._told(upto, self._end)


async def _differences(conn: AsyncConnection, skips: Skips) -> list[Difference]:
    await turn_to(conn, LIVE)
    found: list[Difference | None] = [await compare_checkpoints(conn)]
    for each in PROJECTIONS.values():
        reached: Any = None
        if not each.inline:
            checkpoint = await checkpoints.find(conn, each.name)
            reached = Position(0) if checkpoint is None else checkpoint.position
        found += [await compare_tables(conn, table, reached) for table in each.tables]
    if not skips["holdings"]:  # else the replay lacks what append took in
        found.append(await compare_claims(conn))
    return [difference for difference in found if difference is not None]
