"""`/v1/agent`: the routes that node agents call. A node reads and reports only its own state."""

import json
from datetime import timedelta
from typing import NoReturn

from fastapi import APIRouter, Request

from control_plane.api.audit.entries import entry_of
from control_plane.api.requests.access import NODES, SELF_VERIFIED, AuthenticatedRoute, CallingNode
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import gate_of, keys_of, plane_of, sent, trace_of, users_of
from control_plane.certificates import redis_ca
from control_plane.commands.identity import (
    enrol_node,
    record_superseded,
    renew_session,
    verify_enrolment,
)
from control_plane.decisions.refusals import Conflict, Objection, Throttled
from control_plane.handle import Command
from control_plane.identity.sessions import Superseded
from control_plane.origin import Origin
from control_plane.queues.redis_nodes import user_name
from control_plane.reports.intake import merged, refuse_reports, single, take_report
from control_plane.reports.slice_reports import Place
from events.values import NodeId, new_uuid
from tasks.agent_api import (
    Enrolment,
    Queue,
    Renewal,
    SessionGrant,
)
from tasks.failpoints import failpoint
from tasks.reports import ReportBatch, ReportsTaken
from tasks.scripts import DEFAULT_QUEUE, namespace_of

router = APIRouter(prefix="/v1/agent", tags=["agent"], responses=PROBLEMS, route_class=AuthenticatedRoute)


@router.post("/enroll", openapi_extra=SELF_VERIFIED)
async def enroll(request: Request, body: Enrolment) -> SessionGrant:
    """Exchange a one-time token for a session. The node generates its own key pair. No other credentials are
    required.
    """
    enrolment = verify_enrolment(body)
    node = enrolment.claims.node_id
    return await _granted(
        request,
        node,
        enrol_node(enrolment, _origin(request, node, "enrolment"), _lifetime(request)),
    )


@router.post("/sessions", openapi_extra=SELF_VERIFIED)
async def renew(request: Request, body: Renewal) -> SessionGrant:
    """Renew a session. Requires the node's key, and a session that has not been renewed before."""
    node = body.node_id
    try:
        return await _granted(
            request,
            node,
            renew_session(
                body,
                _origin(request, node, "renewal"),
                _lifetime(request),
                plane_of(request).settings.report_limits,
            ),
        )
    except Superseded as superseded:
        await _refuse_superseded(request, superseded)


async def _granted(request: Request, node: NodeId, command: Command) -> SessionGrant:
    plane, settings = plane_of(request), plane_of(request).settings
    answer, entry = json.loads(await plane.handle(command)), entry_of(request)
    entry.principal, entry.credential = f"node:{node}", f"{node}/{answer['number']}"
    # After a crash before this line the queue has no user for the node yet: the node's repeated request or the
    # dispatcher creates it.
    failpoint("api.session_granted")
    await users_of(request).follow(node)
    queue = Queue(
        host=settings.queue_host,
        port=settings.queue_port,
        username=user_name(node),
        namespace=namespace_of(node),
        queue=DEFAULT_QUEUE,
        tls=settings.nodes_over_tls,
        ca=redis_ca(settings) if settings.nodes_over_tls else None,
    )
    return SessionGrant(
        node_id=node,
        number=answer["number"],
        lifetime_seconds=settings.session_seconds,
        order_keys=keys_of(request).trusted,
        sealing_keys=keys_of(request).sealing,
        subnet=answer["subnet"],
        queue=queue,
        heartbeat_seconds=settings.heartbeat_seconds,
    )


async def _refuse_superseded(request: Request, superseded: Superseded) -> NoReturn:
    node = superseded.node_id
    if await plane_of(request).handle(record_superseded(superseded, _origin(request, node, "renewal"))):
        # Updates the queue's user at once; after a crash before this line, the dispatcher does it.
        await users_of(request).follow(node)
    reason = (
        f"{superseded}: this agent runs from a copied or restored disk, and another agent with the same key has renewed the"
        " session; stop this agent"
    )
    raise Conflict(Objection("superseded", reason))


def _origin(request: Request, node: NodeId, what: str) -> Origin:
    return Origin(
        actor=f"node:{node}",
        reason=f"{what} {sent(request)}",
        correlation_id=new_uuid(),
        trace_context=trace_of(request),
    )


def _lifetime(request: Request) -> timedelta:
    return timedelta(seconds=plane_of(request).settings.session_seconds)


@router.post("/reports", openapi_extra=NODES)
async def reports(request: Request, node: CallingNode, body: ReportBatch) -> ReportsTaken:
    """Take consecutive reports of one spool. Each report is recorded once, even if it is sent again.

    The response has the sequence number of the last recorded report. If it is above the last number in the request,
    the disk of the spool was restored or copied. If it is below, the node's report budget is spent: send the
    remaining reports again. If no report was recorded, the response is 429 with `Retry-After`.
    """
    gate, place, taken = gate_of(request), Place(node, body.incarnation, trace_of(request)), ""
    handle, settings = plane_of(request).handle, plane_of(request).settings
    limits = settings.report_limits
    with gate.entered(node):
        for step in (merged if gate.is_throttled(node) else single)(body.reports):
            try:
                command = take_report(
                    place,
                    step,
                    limits,
                    unreachable_after=settings.unreachable_after,
                    simulated_allowed=settings.place_on_simulated_nodes,
                )
                taken = await handle(command)
            except Throttled as throttled:
                times = gate.refused(node, throttled.retry_after)
                await handle(refuse_reports(node, limits, times, _origin(request, node, "reports")))
                if not taken:
                    raise
                break
            failpoint("intake.taken")
        gate.taken(node)
    return ReportsTaken(sequence=int(taken))
