"""Waking followers of the log through Redis: a hint, never a promise.

Appenders publish after their commit; each process that follows the log holds one subscription. While Redis is
away followers poll, so the worst that a lost wake-up costs is `IDLE_POLL` seconds.
"""

import asyncio
from typing import Final

import redis.asyncio
import redis.exceptions
import structlog

log = structlog.get_logger()
CHANNEL: Final = "ledger:appended"
BUSY_POLL: Final = 0.01
IDLE_POLL: Final = 1.0


class RedisWake:
    """Tells every follower that the log grew."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client

    async def __call__(self) -> None:
        try:
            await self._client.publish(CHANNEL, "")
        except (redis.exceptions.RedisError, OSError) as error:
            log.info("wake_lost", error=str(error))


class Waiter:
    """Waits for a wake-up or for the poll's turn: at once after traffic, then ever later up to `IDLE_POLL`."""

    def __init__(self) -> None:
        self._grown = asyncio.Event()
        self._pause = BUSY_POLL

    async def wait(self, *, busy: bool) -> None:
        self._pause = BUSY_POLL if busy else min(self._pause * 2, IDLE_POLL)
        try:
            await asyncio.wait_for(self._grown.wait(), self._pause)
        except TimeoutError:
            return
        self._grown.clear()

    def wake(self) -> None:
        self._grown.set()


async def listen(client: redis.asyncio.Redis, waiters: tuple[Waiter, ...]) -> None:
    """Wake the waiters whenever somebody appended; runs until cancelled and outlives Redis."""
    while True:
        try:
            async with client.pubsub(ignore_subscribe_messages=True) as subscription:
                await subscription.subscribe(CHANNEL)
                async for _message in subscription.listen():
                    for waiter in waiters:
                        waiter.wake()
        except (redis.exceptions.RedisError, OSError) as error:
            log.info("wake_subscription_lost", error=str(error))
            await asyncio.sleep(IDLE_POLL)
