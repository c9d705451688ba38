"""Accessors for HTTP request handlers: Postgres and Redis connections, event feed and signing keys of the API process,
and the origin and idempotency key of the requested command.
"""

import re
from hashlib import sha256
from typing import Final, cast
from uuid import UUID

from fastapi import Request

from control_plane.api.audit.entries import entry_of
from control_plane.api.creations import Creations
from control_plane.api.feed.feed import Feed
from control_plane.api.requests.rate_limits import RateLimits
from control_plane.api.requests.report_gate import ReportGate
from control_plane.decisions.access import Principal
from control_plane.decisions.misplaced_secrets import has_secret
from control_plane.decisions.refusals import Malformed, Objection
from control_plane.identity.sealing import OrderKeys
from control_plane.origin import Origin
from control_plane.queues.queue_users import QueueUsers
from control_plane.wiring import Plane
from events.ledger.append import CommandKey
from events.values import ProjectId, new_uuid

MAX_KEY: Final = 255
_PLAIN_PATH: Final = re.compile("[/A-Za-z0-9._-]+")
_MISPLACED: Final = (
    "the value contains an API key, a token or a private key; send a key in the Authorization header only, and revoke"
    " the one that was sent"
)
SECRET_IN_REQUEST: Final = "secret_in_request", _MISPLACED
"""Code and message of the refusal of a request with a secret in a place that is recorded."""


def plane_of(request: Request) -> Plane:
    return cast(Plane, request.app.state.plane)


def keys_of(request: Request) -> OrderKeys:
    return cast(OrderKeys, request.app.state.keys)


def users_of(request: Request) -> QueueUsers:
    plane = plane_of(request)
    return QueueUsers(plane.engine, plane.redis)


def gate_of(request: Request) -> ReportGate:
    return cast(ReportGate, request.app.state.report_gate)


def limits_of(request: Request) -> RateLimits:
    return cast(RateLimits, request.app.state.rate_limits)


def creations_of(request: Request) -> Creations:
    return cast(Creations, request.app.state.creations)


def feed_of(request: Request) -> Feed:
    return cast(Feed, request.app.state.feed)


def route_of(request: Request) -> str:
    """Return method and path of a request, as origins and idempotency keys name it."""
    # Starlette composes and splits the whole URL to escape a path, which few paths need.
    path = request.scope["path"]
    return f"{request.method} {path if _PLAIN_PATH.fullmatch(path) else request.url.path}"


def origin_of(
    request: Request,
    principal: Principal,
    *,
    correlation_id: UUID | None = None,
    project: ProjectId | None = None,
) -> Origin:
    """Return the origin of a caller's command: actor, request with its source, correlation id and trace context."""
    return Origin(
        actor=principal.actor,
        reason=f"{route_of(request)} {sent(request)}",
        correlation_id=correlation_id or new_uuid(),
        project=project,
        trace_context=trace_of(request),
    )


def trace_of(request: Request) -> str:
    """Return the trace context of a request, for the events that it causes."""
    return cast(str, request.state.trace_context)


def sent(request: Request) -> str:
    """Return the part of an event's reason that identifies the request: its id, the address of its client, and the id
    of its credential. The last is omitted if the actor is the credential: an API key without a service account, or a
    node.
    """
    entry = entry_of(request)
    source = "" if entry.source is None else f" from {entry.source}"
    is_actor = entry.is_of_node or entry.principal == f"key:{entry.credential}"
    credential = "" if entry.credential is None or is_actor else f" with {entry.credential}"
    return f"{request.state.request_id}{source}{credential}"


async def key_of(request: Request, principal: Principal) -> CommandKey | None:
    """Return the request's `Idempotency-Key`, scoped by caller and route. It is bound to the body, and to the projects
    of the caller, because another token of the same caller may be limited to other projects. Raises `Malformed`.
    """
    raw = request.headers.get("idempotency-key")
    if raw is None:
        return None
    if not 0 < len(raw) <= MAX_KEY:
        reason = f"the Idempotency-Key has {len(raw)} characters; use 1 to {MAX_KEY}"
        raise Malformed(Objection("invalid_idempotency_key", reason))
    if not raw.isprintable():
        reason = "the Idempotency-Key has a character that is not printable; use printable characters only"
        raise Malformed(Objection("invalid_idempotency_key", reason))
    if has_secret(raw):
        raise Malformed(Objection(*SECRET_IN_REQUEST, parameter="Idempotency-Key"))
    projects = "" if principal.projects is None else ",".join(sorted(principal.projects))
    digest = sha256(sha256(projects.encode()).digest() + await request.body()).digest()
    return CommandKey(principal.actor, route_of(request), raw, digest)
