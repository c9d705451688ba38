"""Rows of tasks that admins asked for follow their streams, whatever the dispatcher was told first."""

from datetime import datetime, timedelta
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.dispatch import Dispatcher
from control_plane.handle import database_time
from control_plane.histories import task_history
from control_plane.origin import Origin
from control_plane.wiring import Plane, plane
from events.append import Change, append
from events.connection import ledger_connection
from events.envelope import Recorded
from events.facts import Reason
from events.tasks import (
    TaskAsked,
    TaskCancelAsked,
    TaskCancelled,
    TaskFact,
    TaskFailed,
    TaskRetried,
)
from events.values import NodeId, new_uuid, stream_of_task
from tests.dispatch.given import STATE
from tests.road.test_following import a_plane
from tests.servers.plane import settings_for
from tests.servers.postgres import Database

TASK = UUID("01936c3e-7b21-7c40-8a5b-2f1d9c7e4a10")
ASKED = TaskAsked(TASK, "node.verify", NodeId("n1"), None, None)
WHY = Reason("because", "of the test")


async def a_day_later(conn: AsyncConnection) -> datetime:
    return await database_time(conn) + timedelta(days=1)


async def told(made: Plane, *facts: TaskFact) -> tuple[Recorded[TaskFact], ...]:
    """Append facts to the task's stream; returns the whole stream."""
    async with made.engine.begin() as conn:
        version = len(await task_history(conn, TASK))
        cause = Origin("test", "test", new_uuid()).at(await database_time(conn))
        await append(await ledger_connection(conn), (Change(stream_of_task(TASK), version, facts),), cause)
    async with made.engine.connect() as conn:
        return await task_history(conn, TASK)


async def applied(made: Plane, *batch: Recorded[TaskFact]) -> None:
    dispatcher = Dispatcher(made.handle, made.settings.silent_after)
    async with made.engine.begin() as conn:
        looks = await dispatcher.look(batch, await made.handle.clock(conn))
        await dispatcher.write(conn, looks)


async def rows(made: Plane) -> list[tuple[int, str]]:
    async with made.engine.connect() as conn:
        query = sa.text(
            f"select attempt, {STATE} as state from work.task where kind <> 'operation.cancel' order by attempt"
        )
        return [(row.attempt, row.state) for row in await conn.execute(query)]


async def test_what_was_cancelled_before_it_was_written_is_not_sent(database: Database) -> None:
    async with a_plane(database) as made:
        await told(made, ASKED)
        history = await told(made, TaskCancelAsked(TASK), TaskCancelled(TASK, WHY))
        await applied(made, history[0])
        assert await rows(made) == [(1, "due")], "what comes later comes in a later batch"
        await applied(made, *history[1:])
        assert await rows(made) == [(1, "cancelled")]


async def test_a_new_try_takes_the_place_of_the_one_before(database: Database) -> None:
    async with a_plane(database) as made:
        await applied(made, *await told(made, ASKED))
        await applied(made, *await told(made, TaskFailed(TASK, 1, WHY, final=True), TaskRetried(TASK)))
        assert await rows(made) == [(1, "superseded"), (2, "due")]


async def test_a_look_back_at_what_is_over_sends_nothing(database: Database) -> None:
    async with a_plane(database) as made:
        history = await told(made, ASKED, TaskFailed(TASK, 1, WHY, final=True))
        await applied(made, *history)
        assert await rows(made) == []


async def test_a_task_that_its_node_never_answers_expires(database: Database) -> None:
    async with a_plane(database) as made:
        await applied(made, *await told(made, ASKED))
    settings = settings_for(database, "redis://127.0.0.1:1", 1, 1)
    async with plane(settings, clock=a_day_later) as made:
        await Dispatcher(made.handle, made.settings.silent_after).ring(made.engine, stream_of_task(TASK))
        assert await rows(made) == [(1, "expired")]
        async with made.engine.connect() as conn:
            last = (await task_history(conn, TASK))[-1].fact
            timers = (await conn.execute(sa.text("select stream_id from work.timer"))).all()
        assert isinstance(last, TaskFailed)
        assert (last.final, last.reason.code) == (True, "no_answer")
        assert [row.stream_id for row in timers] == [f"task-{TASK}"], (
            "it rings once more, and is forgotten then"
        )
