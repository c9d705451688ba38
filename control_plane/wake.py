"""Waking followers of the log through Redis: a hint, never a promise.

Appenders publish after their commit; each process that follows the log holds one subscription. While Redis is
away followers poll, so the worst that a lost wake-up costs is `IDLE_POLL` seconds.
"""

import asyncio
from typing import Final

import redis.asyncio
import structlog

from control_plane.outage import REDIS_AWAY, give_way, rest

log = structlog.get_logger()
CHANNEL: Final = "ledger:appended"
DUE: Final = "work:due"
"""Where a dispatcher that has more of the log before it tells those beside it, who may send what it wrote."""
BUSY_POLL: Final = 0.01
IDLE_POLL: Final = 1.0
WAKE_SECONDS: Final = 0.5


class RedisWake:
    """Tells every follower that the log grew, or whoever listens on another channel. `name` says who tells."""

    def __init__(self, client: redis.asyncio.Redis, channel: str = CHANNEL, name: str = "") -> None:
        self._client, self._channel, self._name = client, channel, name

    async def __call__(self) -> None:
        try:
            # The caller's answer waits for this: a Redis that hangs must not hold it back.
            async with asyncio.timeout(WAKE_SECONDS):
                await self._client.publish(self._channel, self._name)
        except REDIS_AWAY as error:
            log.info("wake_lost", error=str(error))


class Waiter:
    """Waits for a wake-up or for the poll's turn: at once after either, then ever later up to `IDLE_POLL`.

    `spare` is for who has better to do: it waits for so long at once, traffic or not.
    """

    def __init__(self) -> None:
        self._grown = asyncio.Event()
        self._pause = BUSY_POLL

    async def wait(self, *, busy: bool, spare: bool = False) -> None:
        give_way()
        self._pause = BUSY_POLL if busy else min(self._pause * 2, IDLE_POLL)
        if spare:
            self._pause = IDLE_POLL
        try:
            async with asyncio.timeout(self._pause):
                await self._grown.wait()
        except TimeoutError:
            return
        self._grown.clear()
        self._pause = BUSY_POLL  # if it is not final yet, it will be soon

    def wake(self) -> None:
        self._grown.set()


async def listen(
    client: redis.asyncio.Redis,
    waiters: tuple[Waiter, ...],
    channel: str = CHANNEL,
    *,
    deaf_to: str | None = None,
) -> None:
    """Wake the waiters whenever somebody but `deaf_to` appended; runs until cancelled and outlives Redis."""
    while True:
        try:
            async with client.pubsub(ignore_subscribe_messages=True) as subscription:
                await subscription.subscribe(channel)
                async for message in subscription.listen():
                    if deaf_to is None or message["data"] != deaf_to.encode():
                        for waiter in waiters:
                            waiter.wake()
        except REDIS_AWAY as error:
            log.info("wake_subscription_lost", error=str(error))
        await rest(IDLE_POLL)
