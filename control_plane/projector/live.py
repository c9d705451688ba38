"""Keeping the live tables of one read model up to date with the ledger, until cancelled.

The loop waits for a wake-up from the process that appended and polls in addition. When another process advanced the
checkpoint, or the database is unavailable, it starts again from the stored checkpoint. When an event cannot be
processed, it waits for an operator's request (retry or skip). Without a request, it retries the event only when the
process starts, since another release may be able to process the event.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from control_plane.commands.projections import projection_history
from control_plane.following.follow import RECONNECT_SECONDS
from control_plane.following.wake import Waiter
from control_plane.outage import DATABASE_UNAVAILABLE, rest
from control_plane.projector.advance import Advance
from control_plane.projector.gathering import Stopped
from events.ledger.tail import Tail
from read_models.checkpoints import CheckpointSuperseded
from read_models.generations import LIVE
from read_models.projections import Projection

log = structlog.get_logger()
BATCH: Final = 2000
LOOK_SECONDS: Final = 0.5


async def keep_live(engine: AsyncEngine, tail: Tail, waiter: Waiter, projection: Projection) -> None:
    """Keep the projection's live tables up to date until cancelled."""
    while True:
        known = 0
        try:
            known = await count_orders(engine, projection.name)
            await _follow(engine, tail, waiter, projection)
        except (CheckpointSuperseded, *DATABASE_UNAVAILABLE) as error:
            log.warning("projection_restarted_after_error", projection=projection.name, error=str(error))
            await rest(RECONNECT_SECONDS)
        except Stopped:
            await wait_for_order(engine, projection.name, known)


async def _follow(engine: AsyncEngine, tail: Tail, waiter: Waiter, projection: Projection) -> None:
    advance = Advance(engine, tail, [projection], LIVE, BATCH)
    await advance.begin()
    while True:
        await waiter.wait(busy=await advance.step())


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
    async with engine.connect() as conn:
        return len(await projection_history(conn, name))
