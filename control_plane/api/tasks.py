"""`/v1/tasks` and `/v1/parked`: everything that nodes are to do, did or would not do, and what an admin does about it.

The orders of allocations and the tasks that admins ask for stand in one list. Whatever came to a bad end, or does not
come to any, is there with its reason.
"""

import contextlib
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa
import structlog
from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from control_plane.api.access import Admin
from control_plane.api.bodies import AskTask
from control_plane.api.pages import Cursor, Limit, Page, bad_cursor
from control_plane.api.picking import After, LastEventId, held
from control_plane.api.problems import PROBLEMS
from control_plane.api.progress import Subject, watch_both
from control_plane.api.state import key_of, origin_of, plane_of
from control_plane.api.task_picking import Wanted
from control_plane.api.task_views import (
    ROWS,
    SHOWN,
    TaskView,
    cursor_of,
    one,
    place_of,
    task_view,
    unsent_view,
)
from control_plane.api.watch import STREAMED, event_stream
from control_plane.commands.tasks import ask_task, cancel_task, retry_task, taken_back, unknown_task
from control_plane.handle import Command
from control_plane.histories import task_history
from control_plane.origin import Origin
from control_plane.redis_nodes import RedisAway, answers
from control_plane.relay import Relay, Withdrawal
from control_plane.task_rows import newest_try
from control_plane.wiring import Plane
from control_plane.work import task
from events.search import Pick
from events.tasks import TaskAsked
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
from tasks.scripts import QueueKeys, namespace_of

log = structlog.get_logger()
router = APIRouter(prefix="/v1/tasks", tags=["tasks"], responses=PROBLEMS)
JSON: Final = "application/json"


@router.get("")
async def list_tasks(
    request: Request, _principal: Admin, wanted: Wanted, cursor: Cursor = None, limit: Limit = 50
) -> Page[TaskView]:
    """Tasks, the newest first: all, or those picked."""
    query = ROWS.where(SHOWN).order_by(task.c.created_at.desc(), task.c.order_id.desc()).limit(limit)
    if cursor is not None:
        place = sa.tuple_(*map(sa.literal, _place(cursor)))
        query = query.where(sa.tuple_(task.c.created_at, task.c.order_id) < place)
    async with plane_of(request).engine.connect() as conn:
        rows = (await conn.execute(query.where(*await wanted.conditions(conn)))).all()
    last = cursor_of(rows[-1]) if len(rows) == limit else None
    return Page(items=[task_view(row) for row in rows], next_cursor=last)


def _place(cursor: str) -> tuple[object, object]:
    try:
        return place_of(cursor)
    except (ValueError, OverflowError):
        raise bad_cursor(cursor) from None


@router.post("", status_code=202, response_model=TaskView)
async def ask(request: Request, principal: Admin, body: AskTask) -> Response:
    """Have a node look at something or mend it, once. The answer comes at once; watch the task come to its end."""
    slot = None if body.slot_id is None else SlotId(body.slot_id)
    node = NodeId(body.node_id or "") if slot is None else node_of(slot)
    task_id = new_uuid()
    command = ask_task(task_id, body.kind, node, slot, origin_of(request, principal, correlation_id=task_id))
    asked = await plane_of(request).handle(command, await key_of(request, principal))
    view = await show(request, principal, asked)
    return Response(view.model_dump_json(), 202, {"Location": f"/v1/tasks/{asked}"}, JSON)


@router.get("/{task_id}")
async def show(request: Request, _principal: Admin, task_id: str) -> TaskView:
    """One task: an order of an allocation by its order's id, or one that was asked for."""
    plane, name = plane_of(request), _name(task_id)
    async with plane.engine.connect() as conn:
        row = await one(conn, name)
        history = () if row is not None else await task_history(conn, name)
    if row is None:
        if not history:
            raise unknown_task(task_id)
        return unsent_view(history)
    view = task_view(row)
    return view.model_copy(update={"deliveries": await _deliveries(request, row)})


async def _deliveries(request: Request, row: sa.Row[Any]) -> int | None:
    """How often the order was fetched, as its queue counts while it holds it."""
    keys = QueueKeys.of(namespace_of(row.node_id))
    try:
        [told] = await answers(plane_of(request).redis, [("HGET", keys.deliveries, str(row.order_id))])
    except RedisAway:
        return None
    # The node may have written anything there.
    return int(told) if isinstance(told, bytes) and told.isdigit() and len(told) < _MANY_DIGITS else None


_MANY_DIGITS: Final = 10


def _name(raw: str) -> UUID:
    try:
        return UUID(raw)
    except ValueError:
        raise unknown_task(raw) from None


@router.post("/{task_id}/retry", status_code=202)
async def retry(request: Request, principal: Admin, task_id: str) -> TaskView:
    """Have a task tried again that came to a bad end: the slot emptied anew, or what was asked for done anew."""
    name = _name(task_id)
    return await _told(request, principal, task_id, retry_task(name, origin_of(request, principal)))


@router.post("/{task_id}/cancel", status_code=202)
async def cancel(request: Request, principal: Admin, task_id: str) -> TaskView:
    """Stop a task. An allocation whose slice is being brought up fails, and what there is of it is taken away."""
    name, origin = _name(task_id), origin_of(request, principal)
    await _told(request, principal, task_id, cancel_task(name, origin))
    await take_back(plane_of(request), name, origin)
    return await show(request, principal, task_id)


async def take_back(plane: Plane, task_id: UUID, origin: Origin) -> None:
    """A try that nobody fetched yet ends here; one that is with its node ends when the node says so."""
    async with plane.engine.begin() as conn:
        newest = await newest_try(conn, task_id)
    if newest is None:
        return
    relay = Relay(plane.redis)
    with contextlib.suppress(RedisAway):
        if await relay.withdraw(newest.node_id, newest.operation_id) is Withdrawal.WITHDRAWN:
            await plane.handle(taken_back(task_id, newest.attempt, origin))
            # Until that was written its row was open, and whoever looked for it in the queue sent it again.
            await relay.withdraw(newest.node_id, newest.operation_id)


async def _told(request: Request, principal: Admin, task_id: str, command: Command) -> TaskView:
    await plane_of(request).handle(command, await key_of(request, principal))
    return await show(request, principal, task_id)


@router.get("/{task_id}/watch", response_class=StreamingResponse, responses=STREAMED)
async def watch_task(
    request: Request,
    _principal: Admin,
    task_id: str,
    after: After = None,
    last_event_id: LastEventId = None,
) -> StreamingResponse:
    """What happens to the task, and how far its node is, as messages `progress` without an id.

    Of an order of an allocation: what happens to its slot and its allocation, from the fact that wanted it.
    """
    subject = await _subject(plane_of(request), _name(task_id))
    start = await held(request, last_event_id or after)
    behind = max(start.position, subject.after)
    return event_stream(watch_both(request, replace(subject, after=behind)))


async def _subject(plane: Plane, name: UUID) -> Subject:
    async with plane.engine.connect() as conn:
        if history := await task_history(conn, name):
            asked = history[0].fact
            assert isinstance(asked, TaskAsked)
            pick, begin = Pick(streams=frozenset({stream_of_task(name)})), history[0].position
            node, which = asked.node_id, task.c.task_id == name
        elif (row := await one(conn, name)) is not None:
            allocation = AllocationId(row.allocation_id)
            slot = SlotId(row.slot_id)
            streams = {
                stream_of_allocation(allocation),
                stream_of_slot(slot),
                stream_of_node(node_of(slot)),
            }
            pick = Pick(streams=frozenset(streams), correlations=frozenset({correlation_of(allocation)}))
            begin, node, which = row.position, NodeId(row.node_id), task.c.order_id == name
        else:
            raise unknown_task(name)
    return Subject(pick, Position(begin - 1), node, lambda step: step.task_id == str(name), which)
