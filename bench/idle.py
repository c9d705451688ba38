"""What nodes cost Redis while nothing happens: commands a second and node, those inside scripts counted.

Real brokers and workers wait, two dispatchers run, and everything that either asks of Redis is counted.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from redis.asyncio import Redis

from bench.road import road
from events.values import NodeId

NODES: Final = 32
_SETTLING_SECONDS: Final = 3.0
Cost = Callable[[float], Awaitable[float]]
"""Commands a second and node, over so many seconds."""


@asynccontextmanager
async def idling(folder: Path) -> AsyncIterator[Cost]:
    names = [NodeId(f"idle-{number}") for number in range(NODES)]
    async with (
        road(folder, names) as made,
        made.serving(made.queues),
        Redis.from_url(made.redis.url) as redis,
    ):
        await made.tell("run")
        await asyncio.sleep(_SETTLING_SECONDS)

        async def cost(seconds: float) -> float:
            before, began = await _commands(redis), time.monotonic()
            await asyncio.sleep(seconds)
            # Less the one that asked before.
            return (await _commands(redis) - before - 1) / (time.monotonic() - began) / NODES

        yield cost


async def _commands(redis: Redis) -> int:
    return sum(each["calls"] for each in (await redis.info("commandstats")).values())
