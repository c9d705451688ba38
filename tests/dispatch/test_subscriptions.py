"""Tests that loops which wait for Redis messages end when they are cancelled, also while they connect."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from redis.asyncio import Redis

from control_plane.api.routes.progress import Hub
from control_plane.following.wake import Waiter, listen
from control_plane.queues.redis_client import redis_client
from deploy.embedded.redis import RedisServer
from events.values import NodeId
from tests.servers.plane import settings_for
from tests.servers.postgres import Database

TURNS = range(200)
"""Numbers of event loop iterations after which a task is cancelled; the largest numbers come after the subscription is
complete.
"""
ENDED_SECONDS = 10.0


async def _listen(client: Redis) -> None:
    await listen(client, (Waiter(),))


async def _receive_progress(client: Redis) -> None:
    hub = Hub(client)
    receiving = asyncio.ensure_future(hub.run())
    try:
        async with hub.box(NodeId("node-a"), lambda _step: True):
            await asyncio.Event().wait()
    finally:
        receiving.cancel()
        await asyncio.wait([receiving])


@pytest.mark.parametrize("loop", [_listen, _receive_progress])
async def test_redis_subscription_that_is_cancelled_at_any_moment_of_its_connect_ends(
    database: Database, redis_server: RedisServer, loop: Callable[[Redis], Awaitable[None]]
) -> None:
    # In Python 3.11, `asyncio.wait_for` swallows a cancellation that arrives together with its result, and the Redis
    # client sends each command with it.
    settings = settings_for(database, redis_server.url, 1, redis_server.port)
    clients, running = list[Redis](), list[asyncio.Future[None]]()
    for turns in TURNS:
        clients.append(redis_client(settings))
        running.append(asyncio.ensure_future(loop(clients[-1])))
        for _ in range(turns):
            await asyncio.sleep(0)
        running[-1].cancel()
    _, lasting = await asyncio.wait(running, timeout=ENDED_SECONDS)
    for task in lasting:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    for client in clients:
        await client.aclose()
    assert len(lasting) == 0
