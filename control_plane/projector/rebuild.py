"""Rebuilding read models: fill their idle tables from the whole ledger, and swap them with the live ones.

The sequence is: empty the idle set; fill it until few events are missing; then, in one transaction that holds appends
back, apply the rest, swap the tables, and write the live checkpoint and the event that records the rebuild. A crash
before that transaction leaves the request open and the live tables unchanged; the next run begins again. A swap that
does not get its locks in time gives way to appends, notes this in the idle checkpoint, and is retried with growing
pauses, because each try holds appends back for a moment.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa
import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.projections import projection_history
from control_plane.decisions.projections import fold
from control_plane.handle import Command, Decision, Handle, Transaction
from control_plane.outage import DATABASE_UNAVAILABLE, rest
from control_plane.projector.advance import Advance
from control_plane.projector.gathering import Gathering, Stopped
from control_plane.projector.live import count_orders, wait_for_order
from events.envelope import Recorded
from events.ledger.append import Change
from events.ledger.connection import ledger_connection
from events.ledger.cursors import drawn
from events.ledger.store import read_range
from events.ledger.tail import Tail
from events.projections import ProjectionFact, ProjectionRebuilt
from events.values import Position, stream_of_projection
from read_models import checkpoints
from read_models.generations import IDLE, LIVE, use_table_set
from read_models.projections import Projection
from read_models.rows import Span
from tasks.failpoints import failpoint

log = structlog.get_logger()
BATCH: Final = 20_000
FEW_EVENTS: Final = 200
"""Number of missing events at which a swap is tried: few enough to be applied within milliseconds."""
MOST_POSITIONS: Final = 2_000
"""Largest number of positions that a swap applies while it holds appends back. If more are missing, the swap is
postponed, and the rebuild first fills the idle tables further.
"""
SHORTEST_PAUSE_SECONDS: Final = 0.2
LONGEST_PAUSE_SECONDS: Final = 10.0


class TooMuchMissing(Exception):
    """More events are missing in the idle tables than a swap may apply while it holds appends back."""


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Rebuilds read models, one rebuild at a time per control plane, because there is only one idle table set.

    While a rebuild waits at an event that it cannot process, it calls `meanwhile` repeatedly: the idle table set is
    free for other work then.
    """

    handle: Handle
    tail: Tail
    meanwhile: Callable[[], Awaitable[None]] | None = None

    async def __call__(self, projections: Sequence[Projection]) -> None:
        """Rebuild projections in the idle tables, and swap these with the live ones.

        If an event stops a rebuild, wait without a time limit until an operator requests a retry or a skip of it.
        Raises `CheckpointSuperseded` if another process has executed one of these rebuilds.
        """
        ordered = await self._ordered(projections)
        await self._empty(projections)
        await self._fill(ordered)
        for each, order in ordered.items():
            pause = SHORTEST_PAUSE_SECONDS
            await self._fill({each: order})
            while not await self._swapped(each, order):
                await rest(pause)
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
                await self._fill({each: order})

    async def _empty(self, projections: Sequence[Projection]) -> None:
        async with self.handle.engine.begin() as conn:
            await empty(conn, projections)
            await use_table_set(conn, IDLE)
            for each in projections:
                await checkpoints.begin(conn, each.name, Position(0))
            failpoint("rebuild.before_emptying")
        failpoint("rebuild.emptied")

    async def _fill(self, ordered: Mapping[Projection, Position]) -> None:
        projections = [*ordered]
        while True:
            await self._refuse_unless_open(ordered)
            known = {each.name: await count_orders(self.handle.engine, each.name) for each in projections}
            advance = Advance(self.handle.engine, self.tail, projections, IDLE, BATCH)
            await advance.begin()
            try:
                await _fill_until_few_missing(advance)
            except Stopped as stopped:
                # If another process swapped meanwhile, the old live rows are here now, and they cause the stop.
                await self._refuse_unless_open(ordered)
                name = stopped.projection
                await wait_for_order(self.handle.engine, name, known[name], self.meanwhile)
            else:
                return

    async def _ordered(self, projections: Sequence[Projection]) -> dict[Projection, Position]:
        """Return the position of each projection's open rebuild request. Raises `CheckpointSuperseded` if a projection
        has no open request.
        """
        async with self.handle.engine.connect() as conn:
            return {
                each: _open_order(each, await projection_history(conn, each.name)).position
                for each in projections
            }

    async def _refuse_unless_open(self, ordered: Mapping[Projection, Position]) -> None:
        """Check that these rebuild requests are still open. Raises `CheckpointSuperseded` if another process has
        executed one, even if a newer rebuild is requested: the idle tables then have the former live rows, or those of
        another rebuild.
        """
        for each, order in (await self._ordered([*ordered])).items():
            if order != ordered[each]:
                raise checkpoints.CheckpointSuperseded(each.name)

    async def _swapped(self, projection: Projection, order: Position) -> bool:
        """Apply the remaining events and swap the idle and live tables; return whether this succeeded. If an event
        cannot be applied, return False: the next fill of the idle tables meets the same event and records the failure.
        """
        try:
            await self.handle(swap(projection, order))
        except (Stopped, TooMuchMissing, *DATABASE_UNAVAILABLE) as error:
            log.info("swap_of_rebuilt_tables_postponed", projection=projection.name, error=str(error))
            async with self.handle.engine.begin() as conn:
                await use_table_set(conn, IDLE)
                await checkpoints.wait(
                    conn, projection.name, f"the swap was postponed: {error}".partition("\n")[0]
                )
            return False
        log.info("projection_rebuilt", projection=projection.name)
        return True


def _open_order(
    projection: Projection, history: Iterable[Recorded[ProjectionFact]]
) -> Recorded[ProjectionFact]:
    """Return the unfinished rebuild request of a projection. Raises `CheckpointSuperseded` if there is none."""
    order = fold(history).rebuild_order
    if order is None:
        raise checkpoints.CheckpointSuperseded(projection.name)
    return order


async def _fill_until_few_missing(advance: Advance) -> None:
    await advance.stream()
    before = advance.position
    while await advance.step():
        if advance.position - before < FEW_EVENTS and not advance.searching:
            return
        before = advance.position


def swap(projection: Projection, order: Position) -> Command:
    """Swap the live tables with the idle tables, which were filled for the rebuild request at the position `order`.

    Raises a database error if its locks are not granted in time, and `CheckpointSuperseded` if the request is not open.
    """

    async def command(transaction: Transaction) -> Decision:
        conn = transaction.conn
        history = await projection_history(conn, projection.name)
        open_order = _open_order(projection, history)
        if open_order.position != order:
            raise checkpoints.CheckpointSuperseded(projection.name)
        # Lock the checkpoint before the tables, in the order of the projector; otherwise both could deadlock.
        await checkpoints.find(conn, projection.name, lock=True)
        ledger = await ledger_connection(conn)
        tables = [table.name for table in projection.tables]
        await ledger.execute("select ledger.begin_swap(%s)", [tables])
        last = await _replay_rest(conn, projection, fold(history).skipped)
        failpoint("rebuild.before_exchange")
        await ledger.execute("select ledger.end_swap(%s)", [tables])
        await checkpoints.begin(conn, projection.name, Position(0))
        await use_table_set(conn, LIVE)
        if not projection.inline:
            await checkpoints.begin(conn, projection.name, last)
        fact = ProjectionRebuilt(projection.name, last)
        cause = open_order.leads_to(actor="process:projector", reason="rebuild", observed_at=transaction.now)
        return Decision((Change(stream_of_projection(projection.name), len(history), (fact,)),), cause)

    return command


async def _replay_rest(conn: AsyncConnection, projection: Projection, skips: frozenset[Position]) -> Position:
    """Apply the remaining events to the idle tables, and return the last position.

    Appends must be held back: then every position up to the last has an event or will never have one.
    """
    await use_table_set(conn, IDLE)
    filled = await checkpoints.find(conn, projection.name)
    assert filled is not None, "a rebuild must fill the idle tables before the swap"
    ledger = await ledger_connection(conn)
    last = await drawn(ledger)
    missing = last - filled.position
    if missing > MOST_POSITIONS:
        raise TooMuchMissing(
            f"the rebuilt tables are {missing} positions behind the ledger; they are swapped in when at most {MOST_POSITIONS} are missing"
        )
    remaining = Gathering([projection], {projection.name: skips})
    remaining.add(await read_range(ledger, filled.position, last, limit=MOST_POSITIONS))
    await remaining.write(conn, Span(filled.position, last))
    return last


async def empty(conn: AsyncConnection, projections: Sequence[Projection]) -> None:
    """Empty the idle tables of these projections. A rollback of the transaction restores their rows."""
    names = ", ".join(f'{IDLE}."{table.name}"' for each in projections for table in each.tables)
    # Lock first, in a statement of its own: TRUNCATE would take its snapshot before it waits for other users.
    await conn.execute(sa.text(f"lock table {names} in access exclusive mode"))
    await conn.execute(sa.text(f"truncate {names}"))
