"""Tests of withdrawals: a cancelled attempt of a task is withdrawn from its node's queue, even if the task sender sends
it concurrently.
"""

from dataclasses import dataclass, replace
from uuid import UUID

import redis

from control_plane.api.routes.tasks import withdraw_task
from control_plane.dispatcher.derive import Timing
from control_plane.dispatcher.dispatch import Dispatcher
from control_plane.dispatcher.task_sender import TaskSender
from control_plane.handle import Command, Handle, database_time
from control_plane.histories import task_history
from control_plane.origin import Origin
from control_plane.wiring import Plane
from events.ledger.append import Change, CommandKey, append
from events.ledger.connection import ledger_connection
from events.tasks import TaskCancelRequested, TaskFact, TaskRequested
from events.values import NodeId, new_uuid, stream_of_task
from tests.dispatch.given import Given


@dataclass(frozen=True, slots=True, kw_only=True)
class Late(Handle):
    """Command handler that lets the task sender run once before it executes a command."""

    task_sender: TaskSender
    given: Given

    async def __call__(self, command: Command, key: CommandKey | None = None) -> str:
        self.given.overdue()
        await self.task_sender.send_due()
        return await Handle.__call__(self, command, key)


async def _record(made: Plane, task: UUID, *facts: TaskFact) -> None:
    async with made.engine.begin() as conn:
        before = len(await task_history(conn, task))
        cause = Origin("test", "test", new_uuid()).at(await database_time(conn))
        await append(await ledger_connection(conn), (Change(stream_of_task(task), before, facts),), cause)
        history = await task_history(conn, task)
    dispatcher = Dispatcher(made.handle, Timing(made.settings.unreachable_after))
    async with made.engine.begin() as conn:
        evaluations = await dispatcher.evaluate(history[before:], await made.handle.clock(conn))
        await dispatcher.write(conn, evaluations)


async def test_task_sent_again_after_its_withdrawal_and_before_its_cancelled_event_is_withdrawn_again(
    made: Plane, given: Given, task_sender: TaskSender, admin: redis.Redis
) -> None:
    task = new_uuid()
    await _record(made, task, TaskRequested(task, "node.verify", NodeId("n1"), None, None))
    await task_sender.send_due()
    [operation] = admin.lrange("ctl:n1:slices", 0, -1)
    await _record(made, task, TaskCancelRequested(task))
    late = Late(made.handle.engine, made.handle.wake, made.handle.clock, task_sender=task_sender, given=given)
    await withdraw_task(replace(made, handle=late), task, Origin("test", "test", new_uuid()))
    [(state,)] = given.rows("select state from work.task where order_id::text = %(id)s", id=operation)
    assert state == "cancelled"
    assert operation not in admin.lrange("ctl:n1:slices", 0, -1)
    assert not admin.hexists("ctl:n1:slices.messages", operation)
