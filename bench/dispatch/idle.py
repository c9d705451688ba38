"""Cost of idle nodes for Redis: commands per second and node, including commands inside scripts.

Real brokers and workers wait, two dispatchers run, and all commands that these processes send to Redis are counted.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from redis.asyncio import Redis

from bench.dispatch.dispatch_path import dispatch_path
from events.values import NodeId

NODES: Final = 32
_SETTLING_SECONDS: Final = 3.0
Cost = Callable[[float], Awaitable[float]]
"""Measures commands per second and node over the given number of seconds."""


@asynccontextmanager
async def idle_nodes(folder: Path) -> AsyncIterator[Cost]:
    names = [NodeId(f"idle-{number}") for number in range(NODES)]
    async with (
        dispatch_path(folder, names) as path,
        path.serving(path.queues),
        Redis.from_url(path.redis.url) as redis,
    ):
        await path.instruct("run")
        await asyncio.sleep(_SETTLING_SECONDS)

        async def cost(seconds: float) -> float:
            before, began = await _commands(redis), time.monotonic()
            await asyncio.sleep(seconds)
            # Subtract the INFO command that read the first value.
            return (await _commands(redis) - before - 1) / (time.monotonic() - began) / NODES

        yield cost


async def _commands(redis: Redis) -> int:
    return sum(each["calls"] for each in (await redis.info("commandstats")).values())
