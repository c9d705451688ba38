"""Keeping the live tables of read models up to date with the ledger, until cancelled.

Read models at one position advance together: most of the cost of an event is that of transactions, and one transaction
for all of them is enough. When one of them is at another position, because an event stopped it or its rebuilt tables
were swapped in, each read model follows the ledger by itself until all wait at one position again.

Each loop waits for a wake-up from the process that appended and polls in addition. When another process advanced a
checkpoint, or the database is unavailable, it starts again from the stored checkpoint. When a read model cannot process
an event, it waits for an operator's request (retry or skip). Without a request, it retries the event only when the
process starts, since another release may be able to process the event.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from control_plane.commands.projections import projection_history
from control_plane.database import reading
from control_plane.following.follow import RECONNECT_SECONDS
from control_plane.following.wake import Waiter
from control_plane.outage import DATABASE_UNAVAILABLE, rest
from control_plane.projector.advance import Advance
from control_plane.projector.gathering import Stopped
from events.ledger.tail import Tail
from events.values import Position
from read_models.checkpoints import CheckpointSuperseded
from read_models.generations import LIVE
from read_models.projections import Projection

log = structlog.get_logger()
BATCH: Final = 2000
LOOK_SECONDS: Final = 0.5
Waiters = Mapping[Projection, Waiter]
"""The read models to keep up to date, each with its own waiter."""


async def keep_live(engine: AsyncEngine, tail: Tail, waiters: Waiters) -> None:
    """Keep the live tables of read models up to date until cancelled."""
    while True:
        stopped = await _together(engine, tail, waiters)
        meeting = _Meeting(waiters)
        async with asyncio.TaskGroup() as group:
            for each in waiters:
                group.create_task(_apart(engine, tail, each, meeting, stopped.get(each.name)))


async def _together(engine: AsyncEngine, tail: Tail, waiters: Waiters) -> dict[str, int]:
    """Advance all read models in common transactions while they are at one position.

    Return the read model that an event stopped, if any, with its number of facts (`count_orders`) before the stop.
    """
    projections = [*waiters]
    advance = Advance(engine, tail, projections, LIVE, BATCH)
    known: dict[str, int] = {}
    try:
        known = {each.name: await count_orders(engine, each.name) for each in projections}
        if await advance.begin():
            await _follow(advance, waiters[projections[0]])
    except Stopped as stopped:
        return {stopped.projection: known[stopped.projection]}
    except (CheckpointSuperseded, *DATABASE_UNAVAILABLE) as error:
        await _restart([*known], error)
    return {}


async def _follow(advance: Advance, waiter: Waiter) -> None:
    while True:
        await waiter.wait(busy=await advance.step())


class _Meeting:
    """Read models that advance apart, until all of them wait at one position."""

    def __init__(self, waiters: Waiters) -> None:
        self._waiters = waiters
        self._positions: dict[Projection, Position] = {}
        self.complete = False

    def leave(self, projection: Projection) -> None:
        """Note that a read model begins to advance."""
        self._positions.pop(projection, None)

    async def wait(self, projection: Projection, position: Position, *, busy: bool) -> None:
        """Note the position of a read model that has no events left to process. If all read models are now at this
        position, end the waits of all of them; otherwise wait for an event.
        """
        self._positions[projection] = position
        if len(self._positions) == len(self._waiters) and len({*self._positions.values()}) == 1:
            self.complete = True
            for each in self._waiters.values():
                each.wake()
        else:
            await self._waiters[projection].wait(busy=busy)


async def _apart(
    engine: AsyncEngine, tail: Tail, projection: Projection, meeting: _Meeting, stopped: int | None
) -> None:
    """Advance one read model until the meeting is complete. `stopped` is its number of facts (`count_orders`) before an
    event stopped it, or None.
    """
    while not meeting.complete:
        try:
            if stopped is not None:
                await wait_for_order(engine, projection.name, stopped)
            stopped = None
            known = await count_orders(engine, projection.name)
            try:
                await _follow_apart(Advance(engine, tail, [projection], LIVE, BATCH), projection, meeting)
            except Stopped:
                stopped = known
        except (CheckpointSuperseded, *DATABASE_UNAVAILABLE) as error:
            await _restart([projection.name], error)


async def _follow_apart(advance: Advance, projection: Projection, meeting: _Meeting) -> None:
    await advance.begin()
    while not meeting.complete:
        meeting.leave(projection)
        busy = await advance.step()
        await meeting.wait(projection, advance.position, busy=busy)


async def _restart(projections: list[str], error: Exception) -> None:
    log.warning("projection_restarted_after_error", projections=projections, error=str(error))
    await rest(RECONNECT_SECONDS)


async def wait_for_order(
    engine: AsyncEngine, name: str, known: int, between: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Wait until a projection has more than `known` facts, because an operator requested a retry or a skip.

    Run `between` after each check.
    """
    while True:
        try:
            if await count_orders(engine, name) > known:
                return
            if between is not None:
                await between()
        except DATABASE_UNAVAILABLE as error:
            log.warning("projection_waits_for_database", projection=name, error=str(error))
        await rest(LOOK_SECONDS)


async def count_orders(engine: AsyncEngine, name: str) -> int:
    """Return the number of facts recorded for a projection: rebuilds (requested or complete), retries and skips."""
    async with reading(engine) as conn:
        return len(await projection_history(conn, name))
