"""`/v1/tasks`: list, request, retry, cancel and watch the tasks of nodes.

One list has the orders of allocations and the operations that admins requested. Tasks that failed or that do not end
are listed with the reason.
"""

import contextlib
from dataclasses import replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa
import structlog
from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from control_plane.api.filters.events import After, LastEventId, held
from control_plane.api.filters.tasks import Wanted
from control_plane.api.requests.access import AuthenticatedRoute, Caller, access, caller_of
from control_plane.api.requests.bodies import RequestTask
from control_plane.api.requests.commands import execute
from control_plane.api.requests.pages import Cursor, Limit, Order, Page, cursor_of, identified_place_of
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import origin_of, plane_of
from control_plane.api.routes.ledger.watch import STREAMED, event_stream
from control_plane.api.routes.progress import Subject, watch_both
from control_plane.api.views.task_views import (
    ROWS,
    SHOWN,
    TaskView,
    of_projects,
    one,
    requested_view,
    task_view,
    unsent_view,
)
from control_plane.commands.tasks import (
    cancel_task,
    record_withdrawal,
    request_task,
    retry_task,
    unknown_task,
)
from control_plane.decisions.access import Scope, Within
from control_plane.handle import Command
from control_plane.histories import task_history
from control_plane.origin import Origin
from control_plane.queues.redis_nodes import RedisUnavailable, answers
from control_plane.queues.relay import Relay, Withdrawal
from control_plane.wiring import Plane
from control_plane.work.tables import task
from control_plane.work.task_rows import newest_try
from events.ledger.search import EventFilter
from events.tasks import TaskRequested
from events.values import (
    AllocationId,
    NodeId,
    Position,
    SlotId,
    correlation_of,
    new_uuid,
    node_of,
    stream_of_allocation,
    stream_of_node,
    stream_of_slot,
    stream_of_task,
)
from read_models.pages import keyset
from tasks.scripts import QueueKeys, namespace_of

log = structlog.get_logger()
router = APIRouter(prefix="/v1/tasks", tags=["tasks"], responses=PROBLEMS, route_class=AuthenticatedRoute)
JSON: Final = "application/json"


@router.get("", openapi_extra=access(Scope.TASKS_READ))
async def list_tasks(
    request: Request,
    principal: Caller,
    wanted: Wanted,
    *,
    cursor: Cursor = None,
    limit: Limit = 50,
    order: Order = "desc",
) -> Page[TaskView]:
    """List tasks by the time of their creation, newest first, optionally filtered."""
    after = None if cursor is None else identified_place_of(cursor)
    query = keyset(
        ROWS.where(SHOWN, of_projects(principal.projects)),
        [task.c.created_at, task.c.order_id],
        after,
        limit,
        descending=order == "desc",
    )
    async with plane_of(request).engine.connect() as conn:
        rows = (await conn.execute(query.where(*await wanted.conditions(conn)))).all()
    last = cursor_of(rows[-1].created_at, rows[-1].order_id) if len(rows) == limit else None
    return Page(items=[task_view(row, principal) for row in rows], next_cursor=last)


@router.post("", status_code=202, response_model=TaskView, openapi_extra=access(Scope.TASKS_WRITE))
async def create_task(request: Request, principal: Caller, body: RequestTask) -> Response:
    """Request an inspection or repair by a node. The response is immediate; watch the task until it ends."""
    slot = None if body.slot_id is None else SlotId(body.slot_id)
    node = NodeId(body.node_id or "") if slot is None else node_of(slot)
    task_id = new_uuid()
    origin = origin_of(request, principal, correlation_id=task_id)

    def render(requested: TaskRequested, now: datetime) -> str:
        return requested_view(requested, now, principal).model_dump_json()

    answer = await execute(request, request_task(task_id, body.kind, node, slot, origin, render=render))
    requested = TaskView.model_validate_json(answer)
    return Response(answer, 202, {"Location": f"/v1/tasks/{requested.id}"}, JSON)


@router.get("/{task_id}", openapi_extra=access(Scope.TASKS_READ))
async def show(request: Request, task_id: str) -> TaskView:
    """Return one task: an order of an allocation, by the order's id, or a requested operation."""
    plane, name, principal = plane_of(request), _name(task_id), caller_of(request)
    within = principal.projects
    async with plane.engine.connect() as conn:
        row = await one(conn, name, within)
        history = () if row is not None or within is not None else await task_history(conn, name)
    if row is None:
        if not history:
            raise unknown_task(task_id)
        return unsent_view(history, principal)
    view = task_view(row, principal)
    return view.model_copy(update={"deliveries": await _deliveries(request, row)})


async def _deliveries(request: Request, row: sa.Row[Any]) -> int | None:
    """Return how often the order was fetched, counted by the queue while it holds the order; None if unknown."""
    keys = QueueKeys.of(namespace_of(row.node_id))
    try:
        [count] = await answers(plane_of(request).redis, [("HGET", keys.deliveries, str(row.order_id))])
    except RedisUnavailable:
        return None
    # The node can write to this key, so its value may be anything.
    return int(count) if isinstance(count, bytes) and count.isdigit() and len(count) < _MANY_DIGITS else None


_MANY_DIGITS: Final = 10


def _name(raw: str) -> UUID:
    try:
        return UUID(raw)
    except ValueError:
        raise unknown_task(raw) from None


@router.post("/{task_id}/retry", status_code=202, openapi_extra=access(Scope.TASKS_WRITE))
async def retry(request: Request, principal: Caller, task_id: str) -> TaskView:
    """Retry a task that failed: a removal empties the slot again, and an operation runs again."""
    name = _name(task_id)
    return await _execute(request, task_id, retry_task(name, origin_of(request, principal)))


@router.post("/{task_id}/cancel", status_code=202, openapi_extra=access(Scope.TASKS_WRITE))
async def cancel(request: Request, principal: Caller, task_id: str) -> TaskView:
    """Cancel a task. If it is a slice's bring-up, its allocation fails, and what was created of the slice is
    removed.
    """
    name, origin = _name(task_id), origin_of(request, principal)
    await _execute(request, task_id, cancel_task(name, origin))
    await withdraw_task(plane_of(request), name, origin)
    return await show(request, task_id)


async def withdraw_task(plane: Plane, task_id: UUID, origin: Origin) -> None:
    """End the newest attempt of a task if its node has not fetched it. An attempt that was fetched ends with a
    report.
    """
    async with plane.engine.begin() as conn:
        newest = await newest_try(conn, task_id)
    if newest is None:
        return
    relay = Relay(plane.redis)
    with contextlib.suppress(RedisUnavailable):
        if await relay.withdraw(newest.node_id, newest.operation_id) is Withdrawal.WITHDRAWN:
            await plane.handle(record_withdrawal(task_id, newest.attempt, origin))
            # Until the command was recorded, the row was open, and the task sender may have sent the task again.
            await relay.withdraw(newest.node_id, newest.operation_id)


async def _execute(request: Request, task_id: str, command: Command) -> TaskView:
    await execute(request, command)
    return await show(request, task_id)


@router.get(
    "/{task_id}/watch",
    response_class=StreamingResponse,
    responses=STREAMED,
    openapi_extra=access(Scope.TASKS_READ),
)
async def watch_task(
    request: Request,
    task_id: str,
    after: After = None,
    last_event_id: LastEventId = None,
) -> StreamingResponse:
    """Stream the events of a task, and its progress as `progress` messages without an id.

    For an order of an allocation, these are the events of its slot and its allocation, from the event that caused it.
    """
    subject = await _subject(plane_of(request), _name(task_id), caller_of(request).projects)
    start = await held(request, last_event_id or after)
    behind = max(start.position, subject.after)
    return event_stream(watch_both(request, replace(subject, after=behind)))


async def _subject(plane: Plane, name: UUID, within: Within) -> Subject:
    async with plane.engine.connect() as conn:
        if within is None and (history := await task_history(conn, name)):
            requested = history[0].fact
            assert isinstance(requested, TaskRequested)
            pick, begin = EventFilter(streams=frozenset({stream_of_task(name)})), history[0].position
            node, which = requested.node_id, task.c.task_id == name
        elif (row := await one(conn, name, within)) is not None:
            allocation = AllocationId(row.allocation_id)
            slot = SlotId(row.slot_id)
            streams = {
                stream_of_allocation(allocation),
                stream_of_slot(slot),
                stream_of_node(node_of(slot)),
            }
            pick = EventFilter(
                streams=frozenset(streams),
                correlations=frozenset({correlation_of(allocation)}),
                projects=within or frozenset(),
            )
            begin, node, which = row.position, NodeId(row.node_id), task.c.order_id == name
        else:
            raise unknown_task(name)
    return Subject(pick, Position(begin - 1), node, lambda step: step.task_id == str(name), which)
