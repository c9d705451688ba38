"""The dispatcher program: follow the ledger and send orders to nodes.

Besides following the ledger, it runs one loop for each of these jobs: placing requests that wait for capacity, sending
tasks (also woken by every commit of new tasks), timers (deadlines, ends of leases), tasks that wait for credit (the
number of tasks that their node may get at a time), tasks that ended and that dead workers still hold, the nodes' Redis
users, nodes that flood their queues, exceeded report budgets, a Redis that lost its data, and rows and progress that
are no longer needed. Each loop may be late or run twice without losing anything. Of several dispatchers one follows the
ledger and one (the same or another) watches the queues; all other loops run in each of them. While Postgres or Redis is
unavailable, the loops wait. An unexpected error ends all loops and the process: its supervisor restarts it, whereas a
partly running dispatcher would look healthy.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.waiting import Placing
from control_plane.dispatcher.derive import Timing
from control_plane.dispatcher.dispatch import Dispatcher, Evaluations
from control_plane.dispatcher.outbox import wake_waiting
from control_plane.dispatcher.pruning import Kept, prune
from control_plane.dispatcher.task_sender import TaskSender
from control_plane.dispatcher.waiting_pass import follow_capacity, may_give_capacity
from control_plane.following.follow import Follower, follow
from control_plane.following.leading import lead
from control_plane.following.wake import DUE, IDLE_POLL, RedisWake, Waiter, listen
from control_plane.identity.sealing import order_keys
from control_plane.outage import DATABASE_UNAVAILABLE, rest
from control_plane.queues.progress import forget
from control_plane.queues.queue_users import QueueUsers
from control_plane.queues.queue_watch import QueueWatch
from control_plane.queues.relay import Relay
from control_plane.reports.intake import settle
from control_plane.settings import Settings
from control_plane.wiring import Plane
from events.envelope import Recorded
from events.facts import Fact
from events.ledger.tail import Tail
from events.values import new_uuid

log = structlog.get_logger()
TICK_SECONDS: Final = 1.0
TIDY_SECONDS: Final = 5.0
FORGET_SECONDS: Final = 60.0
PRUNE_SECONDS: Final = 600.0


async def run_dispatcher(plane: Plane) -> None:
    """Run the dispatcher until cancelled."""
    appended, due = Waiter(), Waiter(first_poll=IDLE_POLL)
    timing = Timing(plane.settings.unreachable_after, plane.settings.lease_leads)
    dispatcher = Dispatcher(plane.handle, timing)
    task_sender = _task_sender(plane)
    users = QueueUsers(plane.engine, plane.redis)
    watch = QueueWatch(plane.engine, plane.redis, plane.handle)
    own_name = str(new_uuid())
    wake_others = RedisWake(plane.redis, DUE, own_name)

    has_tasks, capacity_changed = asyncio.Event(), asyncio.Event()

    async def write(conn: AsyncConnection, evaluations: Evaluations | None) -> None:
        if evaluations is not None and any(each.tasks for each in evaluations.found):
            has_tasks.set()
        await dispatcher.write(conn, evaluations)

    async def committed(*, more: bool) -> None:
        if more:
            await wake_others()
        elif has_tasks.is_set():
            has_tasks.clear()
            due.wake()

    async def wake_tasks() -> None:
        if await wake_waiting(plane.engine, plane.settings.unreachable_after):
            due.wake()

    async def evaluate(batch: Sequence[Recorded[Fact]], now: datetime) -> Evaluations | None:
        if may_give_capacity(batch):
            capacity_changed.set()
        return await dispatcher.evaluate(batch, now)

    follower = Follower("dispatcher", evaluate, write, committed)
    turns = itertools.count()
    grace = plane.settings.deadline_grace_seconds
    log.info("dispatcher_started")
    async with asyncio.TaskGroup() as group:
        group.create_task(listen(plane.redis, (appended,)))
        group.create_task(listen(plane.redis, (due,), DUE, ignored_sender=own_name))
        group.create_task(
            lead(
                ledger_dsn(plane),
                "dispatcher",
                lambda: _lead_dispatch(plane, appended, follower, capacity_changed),
            )
        )
        group.create_task(lead(ledger_dsn(plane), "queue_watch", lambda: _every(TICK_SECONDS, watch.look)))
        group.create_task(_send_due(task_sender, due))
        group.create_task(_every(TICK_SECONDS, task_sender.restore_redis))
        group.create_task(_every(TICK_SECONDS, wake_tasks))
        group.create_task(_every(TICK_SECONDS, users.follow_all))
        group.create_task(_every(TIDY_SECONDS, lambda: task_sender.withdraw_stranded(next(turns))))
        group.create_task(
            _every(TICK_SECONDS, lambda: settle(plane.engine, plane.handle, plane.settings.report_limits))
        )
        group.create_task(_every(FORGET_SECONDS, lambda: forget(plane.engine)))
        group.create_task(_every(PRUNE_SECONDS, lambda: prune(plane.engine, _kept(plane.settings))))
        group.create_task(_every(TICK_SECONDS, lambda: dispatcher.fire_due_timers(plane.engine), after=grace))


def _task_sender(plane: Plane) -> TaskSender:
    return TaskSender(
        plane.engine,
        plane.redis,
        Relay(plane.redis),
        order_keys(plane.settings).seal,
        unreachable_after=plane.settings.unreachable_after,
        session_lifetime=timedelta(seconds=plane.settings.session_seconds),
    )


def _kept(settings: Settings) -> Kept:
    return Kept(timedelta(days=settings.tasks_kept_days), timedelta(days=settings.failed_tasks_kept_days))


async def _lead_dispatch(
    plane: Plane,
    appended: Waiter,
    follower: Follower[Evaluations | None],
    capacity_changed: asyncio.Event,
) -> None:
    """Follow the ledger, and place waiting requests when it shows that capacity may have changed."""
    settings = plane.settings
    placing = Placing(settings.unreachable_after, simulated_allowed=settings.place_on_simulated_nodes)
    passes = asyncio.ensure_future(follow_capacity(plane.handle, placing, capacity_changed))
    try:
        # Not in a task group, which would wrap the errors that end the leadership in an exception group.
        await _follow(plane, appended, follower)
    finally:
        passes.cancel()
        await asyncio.wait([passes])


async def _follow(plane: Plane, appended: Waiter, follower: Follower[Evaluations | None]) -> None:
    tail = Tail(ledger_dsn(plane), follower.name)
    try:
        await follow(plane.engine, tail, appended, follower)
    finally:
        await tail.close()


async def _send_due(task_sender: TaskSender, due: Waiter) -> None:
    """Send due tasks: at once after this or another dispatcher wrote them, and all others once per second.

    While the leader has a backlog of facts, it sends only once per second and leaves the rest to other dispatchers:
    they can send the tasks that the leader wrote, but only the leader follows the ledger.
    """
    while True:
        try:
            await task_sender.send_due()
        except DATABASE_UNAVAILABLE as error:
            log.warning("database_unavailable", error=str(error))
        await due.wait(busy=False)


async def _every(seconds: float, work: Callable[[], Awaitable[object]], *, after: float = 0.0) -> None:
    """Run the function `work` every `seconds`; while the database is unavailable, wait and retry."""
    await asyncio.sleep(after)
    while True:
        try:
            await work()
        except DATABASE_UNAVAILABLE as error:
            log.warning("database_unavailable", error=str(error))
        await rest(seconds)


def ledger_dsn(plane: Plane) -> str:
    """Return the connection string for direct connections to the ledger's database (readers and leader sessions)."""
    return plane.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
