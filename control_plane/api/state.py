"""What a request finds in its application: the process's connections, its feed, and the request's own id."""

import re
from hashlib import sha256
from typing import Final, cast
from uuid import UUID

from fastapi import Request

from control_plane.api.feed import Feed
from control_plane.api.report_gate import ReportGate
from control_plane.decisions.refusals import Malformed, Objection
from control_plane.origin import Origin
from control_plane.queue_users import QueueUsers
from control_plane.sealing import OrderKeys
from control_plane.wiring import Plane
from events.append import CommandKey
from events.values import ProjectId, new_uuid
from read_models.keys import Principal

MAX_KEY: Final = 255
_TRACE_PARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
"""W3C Trace Context, section 3.2; one that is malformed is to be ignored (section 4.3)."""


def plane_of(request: Request) -> Plane:
    return cast(Plane, request.app.state.plane)


def keys_of(request: Request) -> OrderKeys:
    return cast(OrderKeys, request.app.state.keys)


def users_of(request: Request) -> QueueUsers:
    plane = plane_of(request)
    return QueueUsers(plane.engine, plane.redis)


def gate_of(request: Request) -> ReportGate:
    return cast(ReportGate, request.app.state.report_gate)


def feed_of(request: Request) -> Feed:
    return cast(Feed, request.app.state.feed)


def origin_of(
    request: Request,
    principal: Principal,
    *,
    correlation_id: UUID | None = None,
    project: ProjectId | None = None,
) -> Origin:
    """Where a caller's command comes from."""
    trace = request.headers.get("traceparent", "")
    return Origin(
        actor=principal.actor,
        why=f"{request.method} {request.url.path} {request.state.request_id}",
        correlation_id=correlation_id or new_uuid(),
        project=project,
        trace_context=trace if _TRACE_PARENT.fullmatch(trace) else None,
    )


async def key_of(request: Request, principal: Principal) -> CommandKey | None:
    """The request's `Idempotency-Key`, scoped by caller and route and bound to the body. Raises `Malformed`."""
    raw = request.headers.get("idempotency-key")
    if raw is None:
        return None
    if not 0 < len(raw) <= MAX_KEY:
        why = f"an Idempotency-Key has 1 to {MAX_KEY} characters"
        raise Malformed(Objection("bad_idempotency_key", why))
    digest = sha256(await request.body()).digest()
    return CommandKey(principal.actor, f"{request.method} {request.url.path}", raw, digest)
