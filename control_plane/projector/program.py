"""The projector program: keep read models and the numbers of free slots up to date with the ledger, and run requested
rebuilds and verifications.

One projector process leads: its database session holds an advisory lock, for which other processes wait. Two processes
that act as leader at the same time do no damage, because checkpoints are advanced by compare-and-set. Requests run one
after the other, because there is only one idle table set: first all requested rebuilds, in one pass over the ledger.
"""

import asyncio
from contextlib import AsyncExitStack
from typing import Final

import structlog

from control_plane.commands.projections import projection_histories
from control_plane.database import plan_each_statement, reading
from control_plane.decisions.projections import fold
from control_plane.dispatcher.dispatcher_program import ledger_dsn
from control_plane.following.follow import Follower, follow
from control_plane.following.leading import lead
from control_plane.following.wake import Waiter, listen
from control_plane.outage import DATABASE_UNAVAILABLE, rest
from control_plane.projector.live import keep_live
from control_plane.projector.rebuild import Rebuild
from control_plane.projector.shared_tail import SharedTail
from control_plane.projector.verifications import Verifications
from control_plane.wiring import Plane
from control_plane.work.slot_counts import FOLLOWER, changed_nodes, count_again
from events.ledger.tail import Tail
from read_models.checkpoints import CheckpointSuperseded
from read_models.projections import PROJECTIONS, Projection

log = structlog.get_logger()
POLL_SECONDS: Final = 0.5
REST: Final = 5.0
"""Rest of each follower after it found events, as a multiple of the time that it worked (`Waiter`). Most of the
followers' cost is that of their transactions: without the rest, they used more than a third of Postgres' processor time
while allocations were created as fast as possible.
"""


async def _committed(*, more: bool) -> None:
    """Do nothing after a commit of new slot counts: placement reads the table `work.slot_counts` when it needs them."""


_SLOT_COUNTS: Final = Follower(FOLLOWER, changed_nodes, count_again, _committed)


async def run_projector(plane: Plane) -> None:
    """Run the projector until cancelled."""
    await plan_each_statement(plane.engine)
    await lead(ledger_dsn(plane), "projector", lambda: _project(plane))


async def _project(plane: Plane) -> None:
    live = [each for each in PROJECTIONS.values() if not each.inline]
    counting, waiters = Waiter(REST), {each: Waiter(REST) for each in live}
    log.info("projector_started")
    async with AsyncExitStack() as opened, asyncio.TaskGroup() as group:
        rebuilt, shared = Tail(ledger_dsn(plane), "rebuild"), SharedTail(ledger_dsn(plane), "projector")
        for tail in (rebuilt, shared):
            opened.push_async_callback(tail.close)
        group.create_task(listen(plane.redis, (counting, *waiters.values())))
        group.create_task(keep_live(plane.engine, shared, waiters))
        group.create_task(_run_requests(plane, rebuilt))
        group.create_task(follow(plane.engine, shared, counting, _SLOT_COUNTS))


async def _run_requests(plane: Plane, tail: Tail) -> None:
    verifications = Verifications(plane.engine)
    rebuild = Rebuild(plane.handle, tail, verifications.carry_out_one)
    while True:
        try:
            if ordered := await _rebuilds_ordered(plane):
                await rebuild(ordered)
            await verifications.carry_out_one()
        except (CheckpointSuperseded, *DATABASE_UNAVAILABLE) as error:
            log.warning("read_model_rebuild_or_verification_postponed", error=str(error))
        await rest(POLL_SECONDS)


async def _rebuilds_ordered(plane: Plane) -> list[Projection]:
    async with reading(plane.engine) as conn:
        found = await projection_histories(conn)
    return [PROJECTIONS[name] for name, each in found.items() if fold(each).rebuild_order]
