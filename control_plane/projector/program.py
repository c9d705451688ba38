"""The projector: read models kept up with the log, and what is asked for of them: rebuilds and verifications.

One projector of a control plane leads, by a lock that its session holds; another waits for it to go. Two that both
believe they lead harm nothing: their checkpoints are compared and set. What is asked for is carried out one after
the other, because there is one idle set of tables: first every rebuild that is ordered, in one pass over the log.
"""

import asyncio
from contextlib import AsyncExitStack
from typing import Final

import structlog

from control_plane.commands.projections import projection_history
from control_plane.decisions.projections import fold
from control_plane.followers import ledger_dsn
from control_plane.leading import lead
from control_plane.outage import DATABASE_AWAY, rest
from control_plane.projector.live import keep_live
from control_plane.projector.rebuild import Rebuild
from control_plane.projector.verifications import Verifications
from control_plane.wake import Waiter, listen
from control_plane.wiring import Plane
from events.tail import Tail
from read_models.checkpoints import Overtaken
from read_models.projections import PROJECTIONS, Projection

log = structlog.get_logger()
ASKED_SECONDS: Final = 0.5


async def run_projector(plane: Plane) -> None:
    """Run until cancelled."""
    await lead(ledger_dsn(plane), "projector", lambda: _project(plane))


async def _project(plane: Plane) -> None:
    live = [each for each in PROJECTIONS.values() if not each.inline]
    waiters = {each.name: Waiter() for each in live}
    log.info("projector_started")
    async with AsyncExitStack() as opened, asyncio.TaskGroup() as group:
        tails = {name: Tail(ledger_dsn(plane), name) for name in ("rebuild", *waiters)}
        for tail in tails.values():
            opened.push_async_callback(tail.close)
        group.create_task(listen(plane.redis, tuple(waiters.values())))
        for each in live:
            group.create_task(keep_live(plane.engine, tails[each.name], waiters[each.name], each))
        group.create_task(_carry_out(plane, tails["rebuild"]))


async def _carry_out(plane: Plane, tail: Tail) -> None:
    verifications = Verifications(plane.engine)
    rebuild = Rebuild(plane.handle, tail, verifications.carry_out_one)
    while True:
        try:
            if ordered := await _rebuilds_ordered(plane):
                await rebuild(ordered)
            await verifications.carry_out_one()
        except (Overtaken, *DATABASE_AWAY) as error:
            log.warning("orders_put_off", error=str(error))
        await rest(ASKED_SECONDS)


async def _rebuilds_ordered(plane: Plane) -> list[Projection]:
    async with plane.engine.connect() as conn:
        kept = {name: fold(await projection_history(conn, name)) for name in PROJECTIONS}
    return [PROJECTIONS[name] for name, each in kept.items() if each.rebuild_order]
