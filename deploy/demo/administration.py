"""What the admins of the demo data do: they request tasks, verify the read models and limit a budget. Callers wait for
capacity meanwhile.
"""

import math
from dataclasses import replace
from datetime import timedelta
from typing import Final, NamedTuple
from uuid import UUID

import msgspec
import sqlalchemy as sa

from control_plane.commands.placement_request import WaitOptions
from control_plane.commands.tasks import request_task, time_out_task
from control_plane.decisions.budgets import money, month_of
from control_plane.decisions.tasks import REQUESTABLE, Trying, deadline_of, fold
from control_plane.histories import task_history
from control_plane.processes.tasks import operation_id
from control_plane.projector import verifications
from control_plane.work import tables
from deploy.demo.plan import ADMIN, DemoProject, PlannedAllocation
from deploy.demo.recorder import EVER, Recorder
from events.values import NodeId, SlotId, node_of, stream_of_task
from read_models.commitments import commitments
from read_models.slots import slot
from tasks import reports

_ATTEMPT: Final = timedelta(seconds=5)
_BETWEEN_ATTEMPTS: Final = timedelta(seconds=6)
"""More than the longest pause before another attempt."""
_WAIT: Final = timedelta(days=5)
_MOST_WAITING: Final = 16
_SPENT: Final = 0.94
"""Share of the limited budget that is spent or committed."""


class Failing(NamedTuple):
    """A task that fails at each of its attempts."""

    kind: str
    attempts: int
    code: str
    message: str


FAILING: Final = (
    Failing("node.verify", 3, "host_unreadable", "the bridge br-slice did not respond within 5 s"),
    Failing("port.reconcile", 3, "step_refused", "port.add: the bridge refused the port: no space left"),
    Failing("readiness.poll", 1, "not_reachable", "port 22 of the guest did not accept a connection"),
    Failing("lease.apply", 3, "busy", "another task of the slot did not end within 5 s"),
)


async def fail_task(recorder: Recorder, failing: Failing, node: NodeId) -> None:
    """Request a task, and let the node report the failure of each of its attempts."""
    slot_id = await _used_slot(recorder) if REQUESTABLE[failing.kind] else None
    node = node if slot_id is None else node_of(slot_id)
    task_id = await _request(recorder, failing.kind, node, slot_id)
    for attempt in range(1, failing.attempts + 1):
        await recorder.dispatch(stream_of_task(task_id))
        recorder.clock.advance_to(recorder.clock.now + _ATTEMPT)
        operation = operation_id(task_id, attempt)
        reason = reports.Reason(code=failing.code, message=failing.message)
        body = reports.OperationFailed(operation_id=operation, reason=reason)
        await recorder.report(node, body, operation)
        recorder.clock.advance_to(recorder.clock.now + _BETWEEN_ATTEMPTS)
    await recorder.dispatch(stream_of_task(task_id))


async def let_task_expire(recorder: Recorder, node: NodeId) -> None:
    """Request a task of an unreachable node, which times out."""
    task_id = await _request(recorder, "node.verify", node, None)
    await recorder.dispatch(stream_of_task(task_id))
    async with recorder.handle.engine.connect() as conn:
        state = fold(await task_history(conn, task_id))
    assert isinstance(state, Trying), "no node has reported a result"
    recorder.clock.advance_to(deadline_of(state))
    await recorder.do(time_out_task(task_id, unreachable_after=EVER))
    await recorder.dispatch(stream_of_task(task_id))


async def _request(recorder: Recorder, kind: str, node: NodeId, slot_id: SlotId | None) -> UUID:
    task_id = recorder.new_uuid()
    # As in the API: the correlation id of a task is its id.
    origin = replace(recorder.origin("POST /v1/tasks"), correlation_id=task_id)
    await recorder.do(request_task(task_id, kind, node, slot_id, origin, render=lambda _fact, _now: ""))
    return task_id


async def _used_slot(recorder: Recorder) -> SlotId:
    query = sa.select(slot.c.slot_id).where(slot.c.state == "claimed").order_by(slot.c.slot_id)
    async with recorder.handle.engine.connect() as conn:
        return SlotId(recorder.random.choice((await conn.scalars(query)).all()))


async def verify(recorder: Recorder) -> None:
    """Verify the read models, at the time of the demo data."""
    engine, table, began = recorder.handle.engine, tables.verification, recorder.clock.now
    async with engine.begin() as conn:
        requested = await verifications.request(conn, ADMIN)
    await verifications.Verifications(engine).carry_out_one()
    # Requests and results are stamped with the true time, which is not that of the data.
    times = sa.update(table).where(table.c.verification_id == requested)
    async with engine.begin() as conn:
        await conn.execute(times.values(requested_at=began, ended_at=began + timedelta(seconds=4)))


async def request_verification(recorder: Recorder) -> None:
    """Request a verification that the projector carries out when it starts."""
    async with recorder.handle.engine.begin() as conn:
        await verifications.request(conn, ADMIN)


async def wait_for_capacity(recorder: Recorder, planned: PlannedAllocation, priority: int) -> None:
    await recorder.request(planned, WaitOptions(priority, _WAIT, _MOST_WAITING))


async def limit_budget(recorder: Recorder, project: DemoProject) -> None:
    """Give a project a budget that its leases of the present month nearly use up."""
    now = recorder.clock.now
    async with recorder.handle.engine.connect() as conn:
        found = await commitments(conn, [project.name], *month_of(now), now)
    committed = float(money(found[project.name].committed))
    budget = max(math.ceil(committed / _SPENT / 10) * 10, 10)
    await recorder.limit(project.name, msgspec.structs.replace(project.limits, budget_per_month=str(budget)))
