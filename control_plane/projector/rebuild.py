"""Filling the idle tables of read models from the whole log, and exchanging them with the live ones.

Order: empty the idle set, fill it up to where little is missing, then, in one transaction and with appends held, the
rest, the exchange, the live checkpoint and the fact that says so. A crash before that transaction leaves the order
open and the live tables as they were, and the next run begins again. A swap that does not get its locks in
time gives way to the appends, says so at the idle checkpoint, and is tried again ever less often: each try holds
appends for a moment.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa
import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.projections import projection_history
from control_plane.decisions.projections import fold
from control_plane.handle import Command, Decision, Handle, Transaction
from control_plane.outage import DATABASE_AWAY, rest
from control_plane.projector.advance import Advance
from control_plane.projector.gathering import Gathering, Stopped
from control_plane.projector.live import orders_given, until_ordered
from events.append import Change
from events.connection import ledger_connection
from events.cursors import drawn
from events.projections import ProjectionRebuilt
from events.store import read_range
from events.tail import Tail
from events.values import Position, stream_of_projection
from read_models import checkpoints
from read_models.generations import IDLE, LIVE, turn_to
from read_models.projections import Projection
from read_models.rows import Span
from tasks.failpoints import failpoint

log = structlog.get_logger()
BATCH: Final = 20_000
LITTLE: Final = 200
"""Events that are still missing when a swap is tried: few enough to be dealt with in milliseconds."""
MOST: Final = 2_000
"""Positions that a swap deals with at most while it holds appends; the others are waited for again."""
AGAIN_SECONDS: Final = 0.2
AT_LAST_SECONDS: Final = 10.0


class TooMuchMissing(Exception):
    """More was recorded since the idle tables were filled than appends may be held for."""


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Rebuilds read models; one at a time in a control plane, because there is one idle set.

    `meanwhile` is done while an event stops a rebuild, again and again: nobody fills the idle set then.
    """

    handle: Handle
    tail: Tail
    meanwhile: Callable[[], Awaitable[None]] | None = None

    async def __call__(self, projections: Sequence[Projection]) -> None:
        """Rebuild and swap. Waits, for ever if need be, for somebody to deal with an event that stops it."""
        await self._empty(projections)
        await self._fill(projections)
        for each in projections:
            again = AGAIN_SECONDS
            await self._fill([each])
            while not await self._swapped(each):
                await rest(again)
                again = min(again * 2, AT_LAST_SECONDS)
                await self._fill([each])

    async def _empty(self, projections: Sequence[Projection]) -> None:
        async with self.handle.engine.begin() as conn:
            await empty(conn, projections)
            await turn_to(conn, IDLE)
            for each in projections:
                await checkpoints.begin(conn, each.name, Position(0))
            failpoint("rebuild.before_emptying")
        failpoint("rebuild.emptied")

    async def _fill(self, projections: Sequence[Projection]) -> None:
        while True:
            await self._refuse_unless_ordered(projections)
            known = {each.name: await orders_given(self.handle.engine, each.name) for each in projections}
            advance = Advance(self.handle.engine, self.tail, projections, IDLE, BATCH)
            await advance.begin()
            try:
                await _until_little_is_missing(advance)
            except Stopped as stopped:
                # A twin who has swapped meanwhile left the old live rows here, and they stop whoever goes on.
                await self._refuse_unless_ordered(projections)
                name = stopped.projection
                await until_ordered(self.handle.engine, name, known[name], self.meanwhile)
            else:
                return

    async def _refuse_unless_ordered(self, projections: Sequence[Projection]) -> None:
        """Raises `Overtaken` when a twin carried an order out."""
        async with self.handle.engine.connect() as conn:
            for each in projections:
                if fold(await projection_history(conn, each.name)).rebuild_order is None:
                    raise checkpoints.Overtaken(each.name)

    async def _swapped(self, projection: Projection) -> bool:
        """Whether it was. An event that the rest of it stops at is for the next filling to find."""
        try:
            await self.handle(swap(projection))
        except (Stopped, TooMuchMissing, *DATABASE_AWAY) as error:
            log.info("swap_put_off", projection=projection.name, error=str(error))
            async with self.handle.engine.begin() as conn:
                await turn_to(conn, IDLE)
                await checkpoints.wait(
                    conn, projection.name, f"the swap was put off: {error}".partition("\n")[0]
                )
            return False
        log.info("projection_rebuilt", projection=projection.name)
        return True


async def _until_little_is_missing(advance: Advance) -> None:
    await advance.stream()
    before = advance.position
    while await advance.step():
        if advance.position - before < LITTLE and not advance.searching:
            return
        before = advance.position


def swap(projection: Projection) -> Command:
    """Exchange the idle tables with the live ones. Raises a database error when its locks are not to be had in time."""

    async def command(transaction: Transaction) -> Decision:
        conn = transaction.conn
        history = await projection_history(conn, projection.name)
        kept = fold(history)
        if kept.rebuild_order is None:
            raise checkpoints.Overtaken(projection.name)
        # Before the tables, as the projector does, who would otherwise wait for us while we wait for him.
        await checkpoints.find(conn, projection.name, lock=True)
        ledger = await ledger_connection(conn)
        tables = [table.name for table in projection.tables]
        await ledger.execute("select ledger.begin_swap(%s)", [tables])
        last = await _replay_rest(conn, projection, kept.skipped)
        failpoint("rebuild.before_exchange")
        await ledger.execute("select ledger.end_swap(%s)", [tables])
        await checkpoints.begin(conn, projection.name, Position(0))
        await turn_to(conn, LIVE)
        if not projection.inline:
            await checkpoints.begin(conn, projection.name, last)
        fact = ProjectionRebuilt(projection.name, last)
        cause = kept.rebuild_order.leads_to(
            actor="process:projector", why="rebuild", observed_at=transaction.now
        )
        return Decision((Change(stream_of_projection(projection.name), len(history), (fact,)),), cause)

    return command


async def _replay_rest(conn: AsyncConnection, projection: Projection, skips: frozenset[Position]) -> Position:
    """Bring the idle tables up to the last event there is: with appends held, every position is an event or dead."""
    await turn_to(conn, IDLE)
    filled = await checkpoints.find(conn, projection.name)
    assert filled is not None, "a rebuild filled the tables"
    ledger = await ledger_connection(conn)
    last = await drawn(ledger)
    missing = last - filled.position
    if missing > MOST:
        raise TooMuchMissing(
            f"{missing} positions are still missing, and appends are held for {MOST} at most"
        )
    rest_of_it = Gathering([projection], {projection.name: skips})
    rest_of_it.add(await read_range(ledger, filled.position, last, limit=MOST))
    await rest_of_it.write(conn, Span(filled.position, last))
    return last


async def empty(conn: AsyncConnection, projections: Sequence[Projection]) -> None:
    """Empty the idle tables. Undone when the transaction is rolled back."""
    names = ", ".join(f'{IDLE}."{table.name}"' for each in projections for table in each.tables)
    # Alone, because TRUNCATE would take the transaction's snapshot before it waits for whoever fills or swaps them.
    await conn.execute(sa.text(f"lock table {names} in access exclusive mode"))
    await conn.execute(sa.text(f"truncate {names}"))
