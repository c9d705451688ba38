"""The HTTP application: routes, problems, a request id on everything."""

from collections.abc import Callable
from typing import Any

import structlog
from fastapi import Depends, FastAPI
from fastapi_offline import FastAPIOffline
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from control_plane.api import (
    agent,
    allocations,
    desired_state,
    drift,
    events,
    heartbeats,
    history,
    ingress,
    nodes,
    parked,
    paths,
    problems,
    progress,
    projections,
    status,
    stories,
    tasks,
)
from control_plane.api.bounded import Bounded
from control_plane.api.edge import HeadAsGet, storable
from control_plane.api.feed import Feed
from control_plane.api.offers import Offering
from control_plane.api.parameters import known_parameters
from control_plane.api.report_gate import ReportGate
from control_plane.sealing import OrderKeys
from control_plane.time_travel.travel import TimeTravel
from control_plane.wiring import Plane
from events.values import new_uuid

DESCRIPTION = "Who gets which slot, MAC, IP and port of a GPU cloud, for how long, and what was true when."


def create_app(plane: Plane, feed: Feed, keys: OrderKeys) -> FastAPI:
    """The application over one process's connections."""
    # The documentation page is served with its own script and style sheet: it works without internet.
    app = FastAPIOffline(
        redoc_url=None,
        title="Sliceplane",
        version="0.1.0",
        description=DESCRIPTION,
        dependencies=[Depends(storable), Depends(known_parameters)],
    )
    app.state.plane, app.state.feed, app.state.keys = plane, feed, keys
    app.state.hub = progress.Hub(plane.redis)
    app.state.heartbeats = heartbeats.Heartbeats(plane.engine)
    app.state.report_gate = ReportGate()
    app.state.travel = TimeTravel(plane.engine, feed)
    problems.install(app)
    app.add_middleware(Offering, images=plane.settings.offered)
    app.add_middleware(Bounded)
    app.add_middleware(HeadAsGet)
    app.add_middleware(_Named)
    for router in (
        allocations.router,
        stories.router,
        nodes.router,
        drift.router,
        ingress.router,
        projections.router,
        tasks.router,
        parked.router,
        paths.router,
        events.router,
        history.router,
        agent.router,
        heartbeats.router,
        desired_state.router,
        progress.router,
        status.router,
    ):
        app.include_router(router)
    app.openapi = _openapi_of(app)  # type: ignore[method-assign]  # FastAPI documents this way to extend its document
    return app


def _openapi_of(app: FastAPI) -> Callable[[], dict[str, Any]]:
    """A replacement of `FastAPI.openapi` that adds the schemas of problems, to which every route refers."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        document = made()
        document["components"]["schemas"].update(problems.schemas())
        return document

    return openapi


class _Named:
    """Names each request in its log lines, its events and its answer.

    Plain ASGI: Starlette's own way would pass each part of a watch from one task to another.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        name = f"req-{new_uuid().hex}"
        scope.setdefault("state", {})["request_id"] = name

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-Id"] = name
            await send(message)

        with structlog.contextvars.bound_contextvars(request=name):
            await self._app(scope, receive, named)
