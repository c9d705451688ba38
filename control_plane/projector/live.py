"""Keeping one read model's live tables up with the log, until cancelled.

It waits for a wake-up from whoever appended and polls behind that. Overtaken by another runner, or with its database
gone, it starts again from the stored checkpoint. Stopped by an event, it waits for somebody to say what to do,
and tries again by itself only when its process starts: another release may know better.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from control_plane.commands.projections import projection_history
from control_plane.follow import RECONNECT_SECONDS
from control_plane.outage import DATABASE_AWAY, rest
from control_plane.projector.advance import Advance
from control_plane.projector.gathering import Stopped
from control_plane.wake import Waiter
from events.tail import Tail
from read_models.checkpoints import Overtaken
from read_models.generations import LIVE
from read_models.projections import Projection

log = structlog.get_logger()
BATCH: Final = 500
LOOK_SECONDS: Final = 0.5


async def keep_live(engine: AsyncEngine, tail: Tail, waiter: Waiter, projection: Projection) -> None:
    """Run until cancelled."""
    while True:
        known = 0
        try:
            known = await orders_given(engine, projection.name)
            await _follow(engine, tail, waiter, projection)
        except (Overtaken, *DATABASE_AWAY) as error:
            log.warning("projection_restarts", projection=projection.name, error=str(error))
            await rest(RECONNECT_SECONDS)
        except Stopped:
            await until_ordered(engine, projection.name, known)


async def _follow(engine: AsyncEngine, tail: Tail, waiter: Waiter, projection: Projection) -> None:
    advance = Advance(engine, tail, [projection], LIVE, BATCH)
    await advance.begin()
    while True:
        await waiter.wait(busy=await advance.step())


async def until_ordered(
    engine: AsyncEngine, name: str, known: int, meanwhile: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Wait until more than the `known` orders were given for a read model, doing `meanwhile` again and again."""
    while True:
        try:
            if await orders_given(engine, name) > known:
                return
            if meanwhile is not None:
                await meanwhile()
        except DATABASE_AWAY as error:
            log.warning("projection_waits_for_database", projection=name, error=str(error))
        await rest(LOOK_SECONDS)


async def orders_given(engine: AsyncEngine, name: str) -> int:
    """How often somebody ordered something of a read model."""
    async with engine.connect() as conn:
        return len(await projection_history(conn, name))
