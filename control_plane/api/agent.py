"""`/v1/agent`: what nodes call. A node reads and reports only what is its own."""

from typing import Any

import sqlalchemy as sa
from fastapi import APIRouter, Request
from sqlalchemy.dialects.postgresql import distinct_on, insert

from control_plane import work
from control_plane.api.access import CallingNode
from control_plane.api.problems import PROBLEMS
from control_plane.api.state import plane_of
from control_plane.commands.nodes import enrol_node
from control_plane.intake import Place, take_report
from control_plane.origin import Origin
from control_plane.redis_nodes import NodeLogin, ensure_node_user, user_name
from events.values import Ipv4Subnet, new_uuid
from tasks.agent_api import DesiredState, Enrolled, Enrolment, Heartbeat, HeartbeatAnswer, Queue
from tasks.failpoints import failpoint
from tasks.orders import Order
from tasks.reports import ReportBatch, ReportsTaken
from tasks.scripts import DEFAULT_QUEUE, namespace_of

router = APIRouter(prefix="/v1/agent", tags=["agent"], responses=PROBLEMS)


@router.post("/enroll")
async def enroll(request: Request, body: Enrolment) -> Enrolled:
    """Trade a one-time token for credentials of the node's own making. Needs no other access."""
    plane = plane_of(request)
    origin = Origin(
        actor=f"node:{body.node_id}", why=f"enrolment {request.state.request_id}", correlation_id=new_uuid()
    )
    subnet = await plane.handle(enrol_node(body, origin))
    # A crash before this line leaves a node without its Redis user: its own repetition brings it, or the
    # sweeper's restoration does.
    failpoint("api.node_enrolled")
    await ensure_node_user(plane.redis, NodeLogin(body.node_id, body.queue_password_sha256))
    settings = plane.settings
    queue = Queue(
        host=settings.queue_host,
        port=settings.queue_port,
        username=user_name(body.node_id),
        namespace=namespace_of(body.node_id),
        queue=DEFAULT_QUEUE,
    )
    return Enrolled(node_id=body.node_id, subnet=Ipv4Subnet(subnet), queue=queue)


@router.post("/heartbeat")
async def heartbeat(request: Request, node: CallingNode, body: Heartbeat) -> HeartbeatAnswer:
    """Say that a node lives; the answer is the control plane's time."""
    seen: dict[str, Any] = {
        "seen_at": sa.func.clock_timestamp(),
        "agent_version": body.agent_version,
        "spooled_reports": body.spooled_reports,
        "resynced": body.resynced,
    }
    statement = (
        insert(work.node_seen)
        .values(node_id=node, **seen)
        .on_conflict_do_update(index_elements=["node_id"], set_=seen)
        .returning(work.node_seen.c.seen_at)
    )
    async with plane_of(request).engine.begin() as conn:
        return HeartbeatAnswer(now=(await conn.execute(statement)).scalar_one())


@router.post("/reports")
async def reports(request: Request, node: CallingNode, body: ReportBatch) -> ReportsTaken:
    """Take consecutive reports of one spool; each becomes facts once, whatever is sent again.

    An answer beyond the last report sent says that the spool's disk was restored or copied.
    """
    place, taken = Place(node, body.incarnation), ""
    for report in body.reports:
        taken = await plane_of(request).handle(take_report(place, report))
        failpoint("intake.taken")
    return ReportsTaken(sequence=int(taken))


@router.get("/desired-state")
async def desired_state(request: Request, node: CallingNode) -> DesiredState:
    """The newest order of each slot, but for slots whose last order was to be empty and which are."""
    task = work.task
    newest = (
        sa.select(task.c.order, task.c.kind, task.c.state)
        .where(task.c.node_id == node)
        .ext(distinct_on(task.c.slot_id))
        .order_by(task.c.slot_id, task.c.epoch.desc(), task.c.position.desc())
    )
    async with plane_of(request).engine.connect() as conn:
        rows = (await conn.execute(newest)).all()
    return DesiredState(
        orders=tuple(
            Order.model_validate_json(row.order)
            for row in rows
            if (row.kind, row.state) != ("slice.remove", "done")
        )
    )
