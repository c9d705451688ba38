"""`/v1/paths`: who reaches what, over which transport, and what of it should be mended."""

from dataclasses import asdict
from typing import Any

import sqlalchemy as sa
from fastapi import APIRouter, Request
from pydantic import BaseModel
from redis.asyncio import Redis

from control_plane.api.access import Admin
from control_plane.api.pages import Page
from control_plane.api.problems import PROBLEMS
from control_plane.api.state import plane_of
from control_plane.path_inventory import KnownNodes, RedisLimits, paths
from control_plane.redis_nodes import RedisAway, answers
from read_models.nodes import node

router = APIRouter(prefix="/v1", tags=["paths"], responses=PROBLEMS)


class PathView(BaseModel):
    """One way from a part to another, as this control plane was told of it: proxies and firewalls it does not see.

    `survives_private_redis`: whether it still leads there when Redis has no address outside the control plane's own
    network.
    """

    who: str
    reaches: str
    at: str
    transport: str
    encrypted: bool
    credential: str
    survives_private_redis: bool
    warnings: list[str]


@router.get("/paths")
async def list_paths(request: Request, _principal: Admin) -> Page[PathView]:
    """All of them: they are few, for nodes are counted and not named."""
    plane = plane_of(request)
    async with plane.engine.connect() as conn:
        access = sa.func.count(node.c.key_thumbprint)
        expected = sa.func.count().filter(node.c.state == "expected")
        nodes = KnownNodes(*(await conn.execute(sa.select(access, expected))).one())
    found = paths(plane.settings, nodes, await _limits(plane.redis))
    return Page(
        items=[PathView.model_validate(asdict(each)) for each in found],
        next_cursor=None,
    )


async def _limits(redis: Redis) -> RedisLimits:
    """A user of Redis may be forbidden to ask; a Redis that is away says nothing."""
    try:
        memory, bind, port = await answers(
            redis, [("INFO", "memory"), ("CONFIG GET", "bind"), ("CONFIG GET", "port")]
        )
    except RedisAway:
        return RedisLimits()
    said = memory if isinstance(memory, dict) else {}
    addresses, plain = _set(bind, "bind"), _set(port, "port")
    return RedisLimits(
        policy=said.get("maxmemory_policy"),
        maxmemory=said.get("maxmemory"),
        bind=None if addresses is None else tuple(addresses.split()),
        plain_port=None if plain is None else int(plain),
    )


def _set(answer: Any, name: str) -> str | None:
    found = answer.get(name) if isinstance(answer, dict) else None
    return None if found is None else str(found)
