"""The dispatcher, which follows the log and gets orders on their way.

It runs three loops beside the log: timers (deadlines and ends of leases), the sweeper, and the
restoration of a Redis that lost its memory. Each of them may be late or run twice and nothing is lost. Servers that
are away are waited for. An error that nobody foresaw ends all loops and the process with them, loudly: whoever tends
it starts it again, and a half of it would look alive.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from control_plane.dispatch import Dispatcher, overdue_timers
from control_plane.follow import Follower, follow
from control_plane.outage import DATABASE_AWAY, rest
from control_plane.relay import Relay
from control_plane.sweeper import Sweeper
from control_plane.wake import Waiter, listen
from control_plane.wiring import Plane
from events.tail import Tail

log = structlog.get_logger()
TICK_SECONDS: Final = 1.0
TIDY_SECONDS: Final = 5.0
TIMERS: Final = 100


async def run_dispatcher(plane: Plane) -> None:
    """Run until cancelled."""
    waiter = Waiter()
    dispatcher = Dispatcher(plane.handle)
    sweeper = Sweeper(plane.engine, plane.redis, Relay(plane.redis))
    follower = Follower("dispatcher", dispatcher.apply, sweeper.send_due)
    grace = plane.settings.deadline_grace_seconds
    log.info("dispatcher_started")
    async with asyncio.TaskGroup() as group:
        group.create_task(listen(plane.redis, (waiter,)))
        group.create_task(follow(plane.engine, Tail(ledger_dsn(plane)), waiter, follower))
        group.create_task(_every(TICK_SECONDS, sweeper.restore_redis))
        group.create_task(_every(TICK_SECONDS, sweeper.send_due))
        group.create_task(_every(TIDY_SECONDS, sweeper.withdraw_stranded))
        group.create_task(_every(TICK_SECONDS, lambda: _timers(plane, dispatcher), after=grace))


async def _timers(plane: Plane, dispatcher: Dispatcher) -> None:
    async with plane.engine.connect() as conn:
        overdue = await overdue_timers(conn, await plane.handle.clock(conn), TIMERS)
    for allocation in overdue:
        await dispatcher.ring(plane.engine, allocation)


async def _every(seconds: float, work: Callable[[], Awaitable[object]], *, after: float = 0.0) -> None:
    """Run `work` again and again; a database that is away is waited for."""
    await asyncio.sleep(after)
    while True:
        try:
            await work()
        except DATABASE_AWAY as error:
            log.warning("database_away", error=str(error))
        await rest(seconds)


def ledger_dsn(plane: Plane) -> str:
    return plane.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
