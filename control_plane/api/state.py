"""What a request finds in its application: the process's connections, its feed, and the request's own id."""

from hashlib import sha256
from typing import cast
from uuid import UUID

from fastapi import Request

from control_plane.api.feed import Feed
from control_plane.origin import Origin
from control_plane.wiring import Plane
from events.append import CommandKey
from events.values import ProjectId, new_uuid
from read_models.keys import Principal


def plane_of(request: Request) -> Plane:
    return cast(Plane, request.app.state.plane)


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
    return Origin(
        actor=principal.actor,
        why=f"{request.method} {request.url.path} {request.state.request_id}",
        correlation_id=correlation_id or new_uuid(),
        project=project,
        trace_context=request.headers.get("traceparent"),
    )


async def key_of(request: Request, principal: Principal) -> CommandKey | None:
    """The request's `Idempotency-Key`, scoped by caller and route and bound to the body."""
    raw = request.headers.get("idempotency-key")
    if raw is None:
        return None
    digest = sha256(await request.body()).digest()
    return CommandKey(principal.actor, f"{request.method} {request.url.path}", raw, digest)
