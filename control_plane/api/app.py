"""The HTTP application: routes, problem responses and a request id for each request."""

import asyncio
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

import structlog
from fastapi import APIRouter, Depends, FastAPI
from fastapi.routing import APIRoute
from fastapi_offline import FastAPIOffline
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from control_plane.api.audit.access_log import AccessLog
from control_plane.api.audit.credential_uses import CredentialUses
from control_plane.api.audit.middleware import Audited
from control_plane.api.creations import Creations
from control_plane.api.document import extended
from control_plane.api.feed.feed import Feed
from control_plane.api.health import HealthChecks, checks
from control_plane.api.requests import problems
from control_plane.api.requests.access import bearer, declaration_of
from control_plane.api.requests.body_limit import Bounded
from control_plane.api.requests.conditional import Conditional
from control_plane.api.requests.key_lookups import Lookups
from control_plane.api.requests.parameters import known_parameters
from control_plane.api.requests.rate_limits import RateLimits
from control_plane.api.requests.recording import recorded
from control_plane.api.requests.report_gate import ReportGate
from control_plane.api.requests.request_checks import HeadAsGet, storable
from control_plane.api.requests.response_headers import ResponseHeaders
from control_plane.api.routes import (
    access,
    access_log,
    allocations,
    capabilities,
    capacity,
    catalogue,
    drift,
    ingress,
    nodes,
    parked,
    paths,
    problem_pages,
    progress,
    projections,
    projects,
    service_accounts,
    sessions,
    slots,
    status,
    tasks,
)
from control_plane.api.routes.agents import agent, desired_state, heads, heartbeats, streams
from control_plane.api.routes.consoles import console_sessions, serial_logs, ssh_certificates
from control_plane.api.routes.ledger import audit, causes, events, history, timelines
from control_plane.api.routes.usage import export, figures, periods
from control_plane.decisions.misplaced_secrets import has_secret
from control_plane.identity.caller_sessions import by_secrets as sessions_by_secrets
from control_plane.identity.oidc import Verifier
from control_plane.identity.sealing import OrderKeys
from control_plane.time_travel.travel import TimeTravel
from control_plane.wiring import Plane
from events.traces import continued, started, trace_id
from events.values import new_uuid
from read_models.keys import by_secrets as keys_by_secrets

_CLIENT_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""Form of a client's request id that is safe in a log line."""
DESCRIPTION = (
    "Allocate GPU slices with their slots, MAC and IP addresses and public ports, and query their state at any time in"
    " the past."
)

# Made once per process: FastAPI would repeat the analysis of all routes for each application that includes routers.
# `bearer` documents the credentials, which an `AuthenticatedRoute` has checked before. `recorded` is the last one: what
# the others refuse has not begun.
_ROUTES = APIRouter(
    dependencies=[
        Depends(bearer),
        Depends(storable),
        Depends(known_parameters),
        Depends(recorded),
    ]
)
_GROUPS: Final = defaultdict[str, list[str]](list)
"""The routes of each tag that the documentation lists, as method and path."""
for _router in (
    allocations.creations,  # first: routes are compared in this order, and this one is the most frequent
    capabilities.router,
    projects.router,
    projects.reservations,
    access.router,
    service_accounts.router,
    sessions.router,
    access_log.router,
    audit.router,
    allocations.router,
    allocations.placements,
    timelines.router,
    serial_logs.router,
    console_sessions.router,
    ssh_certificates.router,
    *catalogue.ROUTERS,
    nodes.router,
    slots.router,
    drift.router,
    capacity.router,
    figures.router,
    export.router,
    periods.router,
    ingress.router,
    projections.router,
    tasks.router,
    parked.router,
    paths.router,
    events.router,
    causes.router,
    history.router,
    agent.router,
    heartbeats.router,
    desired_state.router,
    heads.router,
    streams.router,
    progress.router,
    status.router,
    problem_pages.router,
):
    for _route in _router.routes:
        declaration_of(_route)
        if isinstance(_route, APIRoute) and _route.include_in_schema:
            for _tag in _route.tags:
                _GROUPS[str(_tag)] += [f"{method} {_route.path_format}" for method in _route.methods or ()]
    _ROUTES.include_router(_router)


def create_app(plane: Plane, feed: Feed, keys: OrderKeys, log: AccessLog) -> FastAPI:
    """Create the HTTP application of one API process, with its connections to Postgres and Redis in `plane`."""
    app = _documented_app()
    app.state.plane, app.state.feed, app.state.keys = plane, feed, keys
    app.state.route_groups = _GROUPS
    app.state.access_log = log
    app.state.credential_uses = CredentialUses(plane.engine, plane.settings.credential_use_seconds)
    app.state.key_lookups = Lookups(plane.engine, keys_by_secrets, lambda: log.is_busy)
    app.state.session_lookups = Lookups(plane.engine, sessions_by_secrets, lambda: log.is_busy)
    app.state.health_checks = HealthChecks(checks(plane.engine, plane.redis))
    app.state.hub = progress.Hub(plane.redis)
    app.state.heartbeats = heartbeats.Heartbeats(plane.engine)
    app.state.verifier = Verifier(plane.settings.oidc)
    app.state.creations = Creations(plane.handle, plane.settings.api_workers)
    app.state.report_gate = ReportGate()
    app.state.rate_limits = RateLimits(plane.settings, plane.redis)
    app.state.travel = TimeTravel(plane.engine, feed)
    app.state.serial_logs = asyncio.Semaphore(serial_logs.AT_ONCE)
    app.state.usage_exports = asyncio.Semaphore(export.AT_ONCE)
    problems.install(app)
    app.add_middleware(Bounded)
    app.add_middleware(Conditional)
    app.add_middleware(HeadAsGet)
    app.add_middleware(ResponseHeaders)
    app.add_middleware(Audited, log=log, uses=app.state.credential_uses)
    app.add_middleware(_RequestId)
    return app


def openapi_document() -> dict[str, Any]:
    """Return the OpenAPI document of the API. It needs no connections."""
    return _documented_app().openapi()


def _documented_app() -> FastAPI:
    """Return an application with all routes and their documentation, without connections."""
    # The documentation page serves its own script and style sheet, so that it works without internet access.
    app = FastAPIOffline(
        redoc_url=None,
        title="Sliceplane",
        version="0.1.0",
        description=DESCRIPTION,
        # FastAPI would look for OpenTelemetry's providers at each request; traces are propagated by `_RequestId`.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    # Before the documentation, because routes are searched in this order.
    app.router.routes[:0] = _ROUTES.routes
    app.openapi = extended(app.openapi)  # type: ignore[method-assign]  # FastAPI documents this way to extend its document
    return app


class _RequestId:
    """Middleware that puts a request id and a trace into the log lines, events and response headers of each request.

    A request without a valid `traceparent` starts a trace, of which the id is the request id without `req-`.

    An `X-Request-Id` of the client is logged as `client_request`. It never replaces the request id, which is unique.

    Plain ASGI: Starlette's base class would pass each chunk of a watch from one asyncio task to another.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        unique = new_uuid()
        request_id, headers = f"req-{unique.hex}", Headers(scope=scope)
        trace = _trace_of(headers.getlist("traceparent"), unique)
        scope.setdefault("state", {}).update(request_id=request_id, trace_context=trace)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = MutableHeaders(scope=message)
                own["X-Request-Id"], own["traceparent"] = request_id, trace
            await send(message)

        client_id = headers.get("x-request-id", "")
        loggable = _CLIENT_ID.fullmatch(client_id) and not has_secret(client_id)
        further = {"client_request": client_id} if loggable else {}
        with structlog.contextvars.bound_contextvars(request=request_id, trace_id=trace_id(trace), **further):
            await self._app(scope, receive, send_with_id)


def _trace_of(given: Sequence[str], request: UUID) -> str:
    """Return the trace context of a request, given the values of its `traceparent` headers.

    A repeated header is invalid, like a malformed one: the request then starts a trace.
    """
    return (continued(given[0], request) if len(given) == 1 else None) or started(request)
