"""`/v1/paths`: network paths between the parts of Sliceplane, their transport, and warnings about insecure ones."""

from dataclasses import asdict
from typing import Any

import sqlalchemy as sa
from fastapi import APIRouter, Request
from pydantic import BaseModel
from redis.asyncio import Redis

from control_plane.api.path_inventory import KnownNodes, RedisLimits, paths
from control_plane.api.requests.access import AuthenticatedRoute, access
from control_plane.api.requests.pages import Cursor, Limit, Order, Page, numbered, page_of
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import plane_of
from control_plane.decisions.access import Scope
from control_plane.queues.redis_nodes import RedisUnavailable, answers
from read_models.nodes import node

router = APIRouter(prefix="/v1", tags=["paths"], responses=PROBLEMS, route_class=AuthenticatedRoute)


class PathView(BaseModel):
    """A network path from one part to another, as configured: proxies and firewalls are not visible.

    `survives_private_redis`: whether the path still works when Redis has no address outside the control plane's own
    network.
    """

    client: str
    server: str
    address: str
    transport: str
    encrypted: bool
    credential: str
    survives_private_redis: bool
    warnings: list[str]


@router.get("/paths", openapi_extra=access(Scope.FLEET_READ))
async def list_paths(
    request: Request, cursor: Cursor = None, limit: Limit = 100, order: Order = "asc"
) -> Page[PathView]:
    """List all network paths, grouped by client. A path that all nodes use is listed once, with the number of nodes."""
    plane = plane_of(request)
    async with plane.engine.connect() as conn:
        access = sa.func.count(node.c.key_thumbprint)
        expected = sa.func.count().filter(node.c.state == "registered")
        nodes = KnownNodes(*(await conn.execute(sa.select(access, expected))).one())
    found = paths(plane.settings, nodes, await _limits(plane.redis))
    items = [PathView.model_validate(asdict(each)) for each in found]
    return page_of(items, numbered(items), cursor, limit, order)


async def _limits(redis: Redis) -> RedisLimits:
    """Return the limits that Redis reports; a limit is None if Redis is down or its user may not read the setting."""
    try:
        memory, bind, port = await answers(
            redis, [("INFO", "memory"), ("CONFIG GET", "bind"), ("CONFIG GET", "port")]
        )
    except RedisUnavailable:
        return RedisLimits()
    info = memory if isinstance(memory, dict) else {}
    addresses, plain = _set(bind, "bind"), _set(port, "port")
    return RedisLimits(
        policy=info.get("maxmemory_policy"),
        maxmemory=info.get("maxmemory"),
        bind=None if addresses is None else tuple(addresses.split()),
        plain_port=None if plain is None else int(plain),
    )


def _set(answer: Any, name: str) -> str | None:
    found = answer.get(name) if isinstance(answer, dict) else None
    return None if found is None else str(found)
