"""Wake-ups for followers of the ledger through Redis, which may be lost.

Appenders publish after their commit; each process that follows the ledger holds one subscription. While Redis is
unavailable followers poll, so a lost wake-up delays them by `IDLE_POLL` seconds at most.
"""

import asyncio
import time
from typing import Final

import redis.asyncio
import structlog

from control_plane.outage import REDIS_UNAVAILABLE, raise_if_cancelled, rest

log = structlog.get_logger()
CHANNEL: Final = "ledger:appended"
DUE: Final = "work:due"
"""The channel on which a dispatcher with a backlog wakes other dispatchers, which can send the tasks that it wrote."""
BUSY_POLL: Final = 0.05
IDLE_POLL: Final = 1.0
LONGEST_REST: Final = 0.3
"""Longest rest of a `Waiter` in seconds, which is the longest delay of events of a busy ledger due to these rests."""
WAKE_SECONDS: Final = 0.5


class RedisWake:
    """Publishes wake-ups on a Redis channel, by default for followers of the ledger. `name` identifies the sender."""

    def __init__(self, client: redis.asyncio.Redis, channel: str = CHANNEL, name: str = "") -> None:
        self._client, self._channel, self._name = client, channel, name

    async def __call__(self) -> None:
        try:
            # The caller's response waits for this, so a hanging Redis must not delay it for long.
            async with asyncio.timeout(WAKE_SECONDS):
                await self._client.publish(self._channel, self._name)
        except REDIS_UNAVAILABLE as error:
            log.info("redis_wake_up_not_published", error=str(error))


class Waiter:
    """Waits for a wake-up or the next poll. The poll interval is `first_poll` after traffic, then doubles up to
    `IDLE_POLL`.

    After its caller found something, a waiter rests `rest` times as long as the caller worked since its last wait, at
    most `longest_rest` seconds. So the caller reads the events of a busy ledger in batches, and uses a limited share of
    the time. After a quiet time, a wake-up still ends the wait at once.
    """

    def __init__(
        self, rest: float = 0.0, *, longest_rest: float = LONGEST_REST, first_poll: float = BUSY_POLL
    ) -> None:
        self._rest, self._longest_rest, self._first_poll = rest, longest_rest, first_poll
        self._began = time.monotonic()
        self._grown = asyncio.Event()
        self._pause = first_poll

    async def wait(self, *, busy: bool) -> None:
        """Wait for a wake-up or the next poll. `busy` is whether the caller just found something to do."""
        raise_if_cancelled()
        if busy and self._rest:
            worked = time.monotonic() - self._began
            await asyncio.sleep(min(self._rest * worked, self._longest_rest))
        try:
            await self._wait(busy=busy)
        finally:
            self._began = time.monotonic()

    async def _wait(self, *, busy: bool) -> None:
        self._pause = self._first_poll if busy else min(self._pause * 2, IDLE_POLL)
        try:
            async with asyncio.timeout(self._pause):
                await self._grown.wait()
        except TimeoutError:
            return
        self._grown.clear()
        self._pause = self._first_poll  # an event that is not final yet will be soon

    def wake(self) -> None:
        """End the current wait, or the next one if none is in progress."""
        self._grown.set()


async def listen(
    client: redis.asyncio.Redis,
    waiters: tuple[Waiter, ...],
    channel: str = CHANNEL,
    *,
    ignored_sender: str | None = None,
) -> None:
    """For each message that is not from `ignored_sender`, wake the waiters.

    Runs until cancelled, also while Redis is down.
    """
    ignored = None if ignored_sender is None else ignored_sender.encode()
    while True:
        try:
            async with client.pubsub(ignore_subscribe_messages=True) as subscription:
                await subscription.subscribe(channel)
                while True:
                    # An unlimited wait would never end if the client swallowed the cancellation (see `rest`).
                    raise_if_cancelled()
                    message = await subscription.get_message(timeout=IDLE_POLL)
                    if message and message["data"] != ignored:
                        for waiter in waiters:
                            waiter.wake()
        except REDIS_UNAVAILABLE as error:
            log.info("redis_wake_up_subscription_lost", error=str(error))
        await rest(IDLE_POLL)
