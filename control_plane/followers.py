"""The dispatcher, which follows the log and gets orders on their way.

Beside the log it has loops of their own for the sweeper, which is also woken by every commit of new tasks, for timers
(deadlines, ends of leases), for tasks whose node has credit again or is heard again, for what dead workers hold of
tasks that are over, for the nodes' users, for nodes that flood their queues, for budgets of reports that were exceeded,
for a Redis that lost its memory, and for rows and progress that are not needed any more. Each of them may be late or
run twice and nothing is lost. Of two dispatchers one follows the log, and one, the same or not, watches queues; both do
all the rest. Servers that are away are waited for. An unexpected error ends all loops and the process with them,
loudly: its supervisor starts it again, and a half of it would look alive.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final

import structlog

from control_plane.credit import wake_waiting
from control_plane.dispatch import Dispatcher, Looks
from control_plane.follow import Follower, follow
from control_plane.intake import settle
from control_plane.leading import lead
from control_plane.outage import DATABASE_AWAY, rest
from control_plane.progress import forget
from control_plane.pruning import Kept, prune
from control_plane.queue_users import QueueUsers
from control_plane.queue_watch import QueueWatch
from control_plane.relay import Relay
from control_plane.sealing import order_keys
from control_plane.settings import Settings
from control_plane.sweeper import Sweeper
from control_plane.wake import DUE, RedisWake, Waiter, listen
from control_plane.wiring import Plane
from events.tail import Tail
from events.values import new_uuid

log = structlog.get_logger()
TICK_SECONDS: Final = 1.0
TIDY_SECONDS: Final = 5.0
FORGET_SECONDS: Final = 60.0
PRUNE_SECONDS: Final = 600.0


async def run_dispatcher(plane: Plane) -> None:
    """Run until cancelled."""
    heard, due = Waiter(), Waiter()
    dispatcher = Dispatcher(plane.handle, plane.settings.silent_after)
    sweeper = _sweeper(plane)
    users = QueueUsers(plane.engine, plane.redis)
    watch = QueueWatch(plane.engine, plane.redis, plane.handle)
    own_name = str(new_uuid())
    tell_others = RedisWake(plane.redis, DUE, own_name)

    backlog = asyncio.Event()

    async def committed(*, more: bool) -> None:
        if more:
            backlog.set()
            await tell_others()
        else:
            backlog.clear()
            due.wake()

    follower = Follower("dispatcher", dispatcher.look, dispatcher.write, committed)
    turns = itertools.count()
    grace = plane.settings.deadline_grace_seconds
    log.info("dispatcher_started")
    async with asyncio.TaskGroup() as group:
        group.create_task(listen(plane.redis, (heard,)))
        group.create_task(listen(plane.redis, (due,), DUE, deaf_to=own_name))
        group.create_task(
            lead(ledger_dsn(plane), "dispatcher", lambda: _follow(plane, heard, follower, backlog))
        )
        group.create_task(lead(ledger_dsn(plane), "queue_watch", lambda: _every(TICK_SECONDS, watch.look)))
        group.create_task(_sweep(sweeper, due, backlog))
        group.create_task(_every(TICK_SECONDS, sweeper.restore_redis))
        group.create_task(
            _every(TICK_SECONDS, lambda: wake_waiting(plane.engine, plane.settings.silent_after))
        )
        group.create_task(_every(TICK_SECONDS, users.follow_all))
        group.create_task(_every(TIDY_SECONDS, lambda: sweeper.withdraw_stranded(next(turns))))
        group.create_task(
            _every(TICK_SECONDS, lambda: settle(plane.engine, plane.handle, plane.settings.report_limits))
        )
        group.create_task(_every(FORGET_SECONDS, lambda: forget(plane.engine)))
        group.create_task(_every(PRUNE_SECONDS, lambda: prune(plane.engine, _kept(plane.settings))))
        group.create_task(_every(TICK_SECONDS, lambda: dispatcher.ring_all(plane.engine), after=grace))


def _sweeper(plane: Plane) -> Sweeper:
    return Sweeper(
        plane.engine,
        plane.redis,
        Relay(plane.redis),
        order_keys(plane.settings).seal,
        silent_after=plane.settings.silent_after,
        session_lifetime=timedelta(seconds=plane.settings.session_seconds),
    )


def _kept(settings: Settings) -> Kept:
    return Kept(timedelta(days=settings.tasks_kept_days), timedelta(days=settings.failed_tasks_kept_days))


async def _follow(
    plane: Plane, heard: Waiter, follower: Follower[Looks | None], backlog: asyncio.Event
) -> None:
    tail = Tail(ledger_dsn(plane), follower.name)
    try:
        await follow(plane.engine, tail, heard, follower)
    finally:
        backlog.clear()  # it is another's now
        await tail.close()


async def _sweep(sweeper: Sweeper, due: Waiter, backlog: asyncio.Event) -> None:
    """Send what is due: at once after it became due, here or at another dispatcher's, and all else every second.

    While who leads has a backlog of facts it leaves sending to the others, but for its look every second: they can send
    what it found, and cannot find it.
    """
    while True:
        sent = 0
        try:
            sent = await sweeper.send_due()
        except DATABASE_AWAY as error:
            log.warning("database_away", error=str(error))
        await due.wait(busy=bool(sent), spare=backlog.is_set())


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
    """Where a `Tail` reads, and who leads keeps a session."""
    return plane.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
