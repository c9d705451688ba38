"""A try that its admin stopped is out of its node's queue, whatever the sweeper did meanwhile."""

from dataclasses import dataclass, replace
from uuid import UUID

import redis

from control_plane.api.tasks import take_back
from control_plane.dispatch import Dispatcher
from control_plane.handle import Command, Handle, database_time
from control_plane.histories import task_history
from control_plane.origin import Origin
from control_plane.sweeper import Sweeper
from control_plane.wiring import Plane
from events.append import Change, CommandKey, append
from events.connection import ledger_connection
from events.tasks import TaskAsked, TaskCancelAsked, TaskFact
from events.values import NodeId, new_uuid, stream_of_task
from tests.dispatch.given import Given


@dataclass(frozen=True, slots=True, kw_only=True)
class Late(Handle):
    """Carries a command out after the sweeper had its turn."""

    sweeper: Sweeper
    given: Given

    async def __call__(self, command: Command, key: CommandKey | None = None) -> str:
        self.given.overdue()
        await self.sweeper.send_due()
        return await Handle.__call__(self, command, key)


async def _told(made: Plane, task: UUID, *facts: TaskFact) -> None:
    async with made.engine.begin() as conn:
        before = len(await task_history(conn, task))
        cause = Origin("test", "test", new_uuid()).at(await database_time(conn))
        await append(await ledger_connection(conn), (Change(stream_of_task(task), before, facts),), cause)
        history = await task_history(conn, task)
    dispatcher = Dispatcher(made.handle, made.settings.silent_after)
    async with made.engine.begin() as conn:
        looks = await dispatcher.look(history[before:], await made.handle.clock(conn))
        await dispatcher.write(conn, looks)


async def test_what_the_sweeper_sends_between_the_withdrawal_and_its_fact_is_taken_back_too(
    made: Plane, given: Given, sweeper: Sweeper, admin: redis.Redis
) -> None:
    task = new_uuid()
    await _told(made, task, TaskAsked(task, "node.verify", NodeId("n1"), None, None))
    await sweeper.send_due()
    [operation] = admin.lrange("ctl:n1:slices", 0, -1)
    await _told(made, task, TaskCancelAsked(task))
    late = Late(made.handle.engine, made.handle.wake, made.handle.clock, sweeper=sweeper, given=given)
    await take_back(replace(made, handle=late), task, Origin("test", "test", new_uuid()))
    [(state,)] = given.rows("select state from work.task where order_id::text = %(id)s", id=operation)
    assert state == "cancelled"
    assert operation not in admin.lrange("ctl:n1:slices", 0, -1)
    assert not admin.hexists("ctl:n1:slices.messages", operation)
