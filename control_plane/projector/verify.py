"""Comparing the live tables with a replay from position zero, row for row, while everybody goes on working.

One snapshot holds it all: a snapshot has exactly the events and exactly the rows of the transactions that were
committed by then, so that rows which append itself writes must equal the replay of all events in it, whatever
is under way beside it. (A follower of the log may never read that way: it would not see what commits later. Here
nothing comes later.) Read models that the projector brings up are compared up to their checkpoint. The replay
fills the idle set in a transaction that is rolled back, so that a crash leaves nothing.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from control_plane.projector.compare import Difference, compare_keys, compare_ledger, compare_tables
from control_plane.projector.gathering import Gathering, Stopped, skips_of
from control_plane.projector.rebuild import empty
from events.connection import ledger_connection
from events.envelope import Recorded
from events.facts import Fact
from events.store import read_range
from events.tables import event
from events.values import Position
from read_models import checkpoints
from read_models.generations import IDLE, LIVE, turn_to
from read_models.projections import PROJECTIONS

BATCH: Final = 2000
Told = Callable[[Position, Position], Awaitable[None]]
"""Told the position that the replay has reached, and the one it will end at."""


async def verify(engine: AsyncEngine, told: Told) -> tuple[Position, tuple[Difference, ...]]:
    """The position that was compared, and each table's first difference. Raises `Stopped` for an event that nobody
    let pass and that cannot be replayed.
    """
    async with engine.connect() as conn:
        await conn.execution_options(isolation_level="REPEATABLE READ")
        # Before the snapshot is taken: whoever fills the idle set, or swaps it, is waited for and then kept out.
        await empty(conn, list(PROJECTIONS.values()))
        try:
            upto = await conn.scalar(sa.select(sa.func.max(event.c.position)))
            end = Position(upto or 0)
            await _replay(conn, end, told)
            return end, await _differences(conn)
        finally:
            await conn.rollback()


async def _replay(conn: AsyncConnection, upto: Position, told: Told) -> None:
    projections = list(PROJECTIONS.values())
    skips = await skips_of(conn, projections)
    ledger = await ledger_connection(conn)
    await turn_to(conn, IDLE)
    position = Position(0)
    while position < upto:
        await told(position, upto)
        events = await read_range(ledger, position, upto, limit=BATCH)
        try:
            await _write(conn, events, Gathering(projections, skips))
        except Stopped:
            for each in events:
                await _write(conn, [each], Gathering(projections, skips))
            raise
        position = events[-1].position
    await told(upto, upto)


async def _write(conn: AsyncConnection, events: Sequence[Recorded[Fact]], gathering: Gathering) -> None:
    """Within a savepoint, so that after a failure one event can be tried after the other."""
    async with conn.begin_nested():
        gathering.add(events)
        await gathering.write(conn)


async def _differences(conn: AsyncConnection) -> tuple[Difference, ...]:
    await turn_to(conn, LIVE)
    found: list[Difference | None] = []
    for each in PROJECTIONS.values():
        reached: Any = None
        if not each.inline:
            checkpoint = await checkpoints.find(conn, each.name)
            reached = Position(0) if checkpoint is None else checkpoint.position
        found += [await compare_tables(conn, table, reached) for table in each.tables]
    found += await compare_ledger(conn)
    found.append(await compare_keys(conn))
    return tuple(difference for difference in found if difference is not None)
