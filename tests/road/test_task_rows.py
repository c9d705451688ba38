"""Tests of the database rows of tasks that admins request: they match the events of the tasks, however the
dispatcher divides these events into batches.
"""

from datetime import datetime, timedelta
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.dispatcher.derive import Timing
from control_plane.dispatcher.dispatch import Dispatcher
from control_plane.handle import database_time
from control_plane.histories import task_history
from control_plane.origin import Origin
from control_plane.wiring import Plane, plane
from events.envelope import Recorded
from events.facts import Reason
from events.ledger.append import Change, append
from events.ledger.connection import ledger_connection
from events.tasks import (
    TaskCancelled,
    TaskCancelRequested,
    TaskFact,
    TaskFailed,
    TaskRequested,
    TaskRetried,
)
from events.values import NodeId, new_uuid, stream_of_task
from tests.dispatch.given import STATE
from tests.road.test_followers import unreachable_redis_plane
from tests.servers.plane import settings_for
from tests.servers.postgres import Database

TASK = UUID("01936c3e-7b21-7c40-8a5b-2f1d9c7e4a10")
REQUESTED = TaskRequested(TASK, "node.verify", NodeId("n1"), None, None)
REASON = Reason("because", "of the test")


async def a_day_later(conn: AsyncConnection) -> datetime:
    return await database_time(conn) + timedelta(days=1)


async def record(made: Plane, *facts: TaskFact) -> tuple[Recorded[TaskFact], ...]:
    """Append events to the ledger stream of the task. Return all events of this stream."""
    async with made.engine.begin() as conn:
        version = len(await task_history(conn, TASK))
        cause = Origin("test", "test", new_uuid()).at(await database_time(conn))
        await append(await ledger_connection(conn), (Change(stream_of_task(TASK), version, facts),), cause)
    async with made.engine.connect() as conn:
        return await task_history(conn, TASK)


async def applied(made: Plane, *batch: Recorded[TaskFact]) -> None:
    dispatcher = Dispatcher(made.handle, Timing(made.settings.unreachable_after))
    async with made.engine.begin() as conn:
        due = await dispatcher.evaluate(batch, await made.handle.clock(conn))
        await dispatcher.write(conn, due)


async def rows(made: Plane) -> list[tuple[int, str]]:
    async with made.engine.connect() as conn:
        query = sa.text(
            f"select attempt, {STATE} as state from work.task where kind <> 'operation.cancel' order by attempt"
        )
        return [(row.attempt, row.state) for row in await conn.execute(query)]


async def test_task_cancelled_before_its_database_row_was_written_is_not_sent(database: Database) -> None:
    async with unreachable_redis_plane(database) as made:
        await record(made, REQUESTED)
        history = await record(made, TaskCancelRequested(TASK), TaskCancelled(TASK, REASON))
        await applied(made, history[0])
        assert await rows(made) == [(1, "due")], "the cancellation is in a later batch"
        await applied(made, *history[1:])
        assert await rows(made) == [(1, "cancelled")]


async def test_retry_of_a_failed_task_supersedes_the_previous_attempt(database: Database) -> None:
    async with unreachable_redis_plane(database) as made:
        await applied(made, *await record(made, REQUESTED))
        await applied(made, *await record(made, TaskFailed(TASK, 1, REASON, final=True), TaskRetried(TASK)))
        assert await rows(made) == [(1, "superseded"), (2, "due")]


async def test_task_that_failed_before_its_database_row_was_written_gets_no_row(database: Database) -> None:
    async with unreachable_redis_plane(database) as made:
        history = await record(made, REQUESTED, TaskFailed(TASK, 1, REASON, final=True))
        await applied(made, *history)
        assert await rows(made) == []


async def test_task_without_an_answer_of_its_node_expires_at_its_deadline(database: Database) -> None:
    async with unreachable_redis_plane(database) as made:
        await applied(made, *await record(made, REQUESTED))
    settings = settings_for(database, "redis://127.0.0.1:1", 1, 1)
    async with plane(settings, clock=a_day_later) as made:
        await Dispatcher(made.handle, Timing(made.settings.unreachable_after)).fire_timer(
            made.engine, stream_of_task(TASK)
        )
        assert await rows(made) == [(1, "expired")]
        async with made.engine.connect() as conn:
            last = (await task_history(conn, TASK))[-1].fact
            timers = (await conn.execute(sa.text("select stream_id from work.timer"))).all()
        assert isinstance(last, TaskFailed)
        assert (last.final, last.reason.code) == (True, "no_answer")
        assert [row.stream_id for row in timers] == [f"task-{TASK}"], (
            "the timer remains for one more evaluation, which deletes it"
        )
