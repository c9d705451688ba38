"""The HTTP application: routes, problems, a request id on everything, health."""

from collections.abc import Awaitable, Callable

import sqlalchemy as sa
import structlog
from fastapi import FastAPI, Request, Response

from control_plane.api import agent, allocations, events, nodes, problems
from control_plane.api.feed import Feed
from control_plane.api.state import plane_of
from control_plane.wiring import Plane
from events.values import new_uuid

DESCRIPTION = "Who gets which slot, MAC, IP and port of a GPU cloud, for how long, and what was true when."


def create_app(plane: Plane, feed: Feed) -> FastAPI:
    """The application over one process's connections."""
    app = FastAPI(title="Sliceplane", version="0.1.0", description=DESCRIPTION, redoc_url=None)
    app.state.plane, app.state.feed = plane, feed
    problems.install(app)
    app.middleware("http")(_identify)
    for router in (allocations.router, nodes.router, events.router, agent.router):
        app.include_router(router)
    app.get("/healthz", tags=["health"])(alive)
    app.get("/readyz", tags=["health"], response_model=None)(ready)
    return app


async def _identify(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    """Name the request in its log lines, its events and its answer."""
    request.state.request_id = f"req-{new_uuid().hex}"
    with structlog.contextvars.bound_contextvars(request=request.state.request_id):
        response = await call_next(request)
    response.headers["X-Request-Id"] = request.state.request_id
    return response


async def alive() -> dict[str, str]:
    """The process answers."""
    return {"status": "alive"}


async def ready(request: Request) -> dict[str, str]:
    """The process can do its work: its database answers."""
    async with plane_of(request).engine.connect() as conn:
        await conn.execute(sa.text("select 1"))
    return {"status": "ready"}
