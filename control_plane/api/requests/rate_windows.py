"""Counters of requests in sliding windows: in Redis, which all API processes share, and in the memory of one process.

A counter has two adjacent windows of fixed length. The requests of the current window count fully. Those of the
previous window count in proportion to the part of this window that the sliding window still covers. So a quota is
regained continuously.

`SharedWindows` uses only the scripts of the package `limits`, because the Redis client of this package would make
several round trips for each request. All requests that arrive while Redis answers are sent together with the next round
trip, so the windows use one connection of the process, however many requests are in progress.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha1
from math import floor
from typing import Any, Final, NamedTuple

from limits import RateLimitItem, RateLimitItemPerSecond
from limits.aio.storage import MemoryStorage
from limits.aio.storage.redis.bridge import RedisBridge
from limits.aio.strategies import SlidingWindowCounterRateLimiter
from redis.asyncio import Redis
from redis.exceptions import NoScriptError

from control_plane.queues.redis_nodes import Command, RedisUnavailable, answers

REDIS_SECONDS: Final = 1.0
"""Time in seconds within which Redis has to answer. When Redis stops answering, a request is delayed by at most twice
this time.
"""
_BATCH: Final = 100
"""Maximum number of HTTP requests that are counted in Redis with one round trip."""


def _sha(script: bytes) -> str:
    return sha1(script, usedforsecurity=False).hexdigest()


_SPEND: Final = _sha(RedisBridge.SCRIPT_ACQUIRE_SLIDING_WINDOW)
_READ: Final = _sha(RedisBridge.SCRIPT_SLIDING_WINDOW)
_LOAD: Final[list[Command]] = [
    ("SCRIPT", "LOAD", RedisBridge.SCRIPT_ACQUIRE_SLIDING_WINDOW),
    ("SCRIPT", "LOAD", RedisBridge.SCRIPT_SLIDING_WINDOW),
]


class Quota(NamedTuple):
    """A quota policy: at most `limit` requests in a sliding window of `seconds`."""

    name: str
    limit: int
    seconds: int


class Charge(NamedTuple):
    """The charge of one request to a quota. `subject` is the principal, project, source address or other sender that
    has the quota: each subject has its own counter of the quota.
    """

    quota: Quota
    subject: str

    @property
    def item(self) -> RateLimitItem:
        return RateLimitItemPerSecond(self.quota.limit, self.quota.seconds, self.quota.name)

    @property
    def key(self) -> str:
        return self.item.key_for(self.subject)


class Window(NamedTuple):
    """State of a counter: the numbers of requests in the previous and in the current window, and `left`, the seconds
    until the current window ends. At that moment the sliding window no longer covers the previous window.
    """

    previous: int
    current: int
    left: float

    def remaining(self, quota: Quota) -> int:
        """Return the number of requests that the quota still admits now."""
        return max(0, quota.limit - self._carried(quota) - self.current)

    def regained_in(self, quota: Quota) -> float:
        """Return the seconds until the quota admits more requests than now, if none is sent meanwhile."""
        carried = min(self._carried(quota), quota.limit - self.current)
        if carried <= 0:
            return self.left
        return max(0.0, self.left - carried * quota.seconds / self.previous)

    def _carried(self, quota: Quota) -> int:
        return floor(self.previous * self.left / quota.seconds)


class Spent(NamedTuple):
    """Result of a charge: whether its quota admits the request, and the state of the counter afterwards."""

    charge: Charge
    admitted: bool
    window: Window


def is_admitted(spent: Sequence[Spent]) -> bool:
    """Return whether all quotas of a request admit it."""
    return all(each.admitted for each in spent)


@dataclass(slots=True)
class _Counter:
    """A counter in memory. `began` is the time, in seconds, at which the current window began."""

    began: float
    previous: int = 0
    current: int = 0


class LocalWindows:
    """At most `most` counters in the memory of this process; the least recently used counter is deleted first. Not
    thread-safe: used by one event loop.
    """

    def __init__(self, most: int, now: Callable[[], float] = time.monotonic) -> None:
        self._most, self._now = most, now
        self._counters = OrderedDict[str, _Counter]()

    def __contains__(self, charge: Charge) -> bool:
        return charge.key in self._counters

    def forget(self, charge: Charge) -> None:
        """Delete the counter of the quota and the subject of a charge, if there is one."""
        self._counters.pop(charge.key, None)

    def spend(self, charge: Charge) -> Spent:
        """Count a request if its quota admits it. Return whether the quota admits the request, and the state of the
        counter afterwards.
        """
        counter = self._counter(charge)
        admitted = self._window(counter, charge.quota).remaining(charge.quota) > 0
        counter.current += admitted
        return Spent(charge, admitted, self._window(counter, charge.quota))

    def read(self, charge: Charge) -> Window:
        """Return the state of the counter of a charge without counting a request."""
        if charge in self:
            return self._window(self._counter(charge), charge.quota)
        return Window(0, 0, float(charge.quota.seconds))

    def _counter(self, charge: Charge) -> _Counter:
        now, key, seconds = self._now(), charge.key, charge.quota.seconds
        counter = self._counters.setdefault(key, _Counter(now))
        self._counters.move_to_end(key)
        if now - counter.began >= 2 * seconds:
            counter.began, counter.previous, counter.current = now, 0, 0
        elif now - counter.began >= seconds:
            counter.began, counter.previous, counter.current = counter.began + seconds, counter.current, 0
        if len(self._counters) > self._most:
            self._counters.popitem(last=False)
        return counter

    def _window(self, counter: _Counter, quota: Quota) -> Window:
        return Window(counter.previous, counter.current, counter.began + quota.seconds - self._now())


class Turns:
    """Times at which the requests of each subject are admitted, in the order of their arrival (the generic cell rate
    algorithm). After a pause, `undelayed` requests are admitted at once, and further ones at `rate` per second. If the
    quota of a subject admits more than half of that rate, its requests are admitted at twice the rate of the quota.

    The times are in the memory of this process, for at most `most` subjects; the time of the least recently used
    subject is deleted first. Not thread-safe: used by one event loop.
    """

    def __init__(
        self, most: int, rate: float, undelayed: int, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._most, self._rate, self._undelayed, self._now = most, rate, undelayed, now
        self._due = OrderedDict[str, float]()

    def take(self, charge: Charge) -> float:
        """Reserve the next time at which a request of the subject of a charge is admitted. Return the seconds until
        this time.
        """
        now, key, quota = self._now(), charge.key, charge.quota
        rate = max(self._rate, 2 * quota.limit / quota.seconds)
        due = max(now, self._due.get(key, 0.0))
        self._due[key] = due + 1 / rate
        self._due.move_to_end(key)
        if len(self._due) > self._most:
            self._due.popitem(last=False)
        return max(0.0, due - now - (self._undelayed - 1) / rate)


class MemoryWindows:
    """Counters of principals and projects in the memory of this process, for the time in which Redis is unavailable."""

    def __init__(self) -> None:
        self._storage = MemoryStorage()
        self._limiter = SlidingWindowCounterRateLimiter(self._storage)

    async def spend(self, charges: Sequence[Charge]) -> list[Spent]:
        """Count a request in all of its quotas if all of them admit it. Return the result for each quota."""
        admits = [await self._limiter.test(each.item, each.subject) for each in charges]
        if all(admits):
            admits = [await self._limiter.hit(each.item, each.subject) for each in charges]
        return [
            Spent(charge, admitted, await self._window(charge))
            for charge, admitted in zip(charges, admits, strict=True)
        ]

    async def _window(self, charge: Charge) -> Window:
        seconds = charge.quota.seconds
        previous, _, current, ttl = await self._storage.get_sliding_window(charge.key, seconds)
        return Window(previous, current, ttl - seconds)


class _Waiting(NamedTuple):
    charges: Sequence[Charge]
    spent: asyncio.Future[list[Spent]]


class SharedWindows:
    """Counters in Redis, shared by all API processes. If Redis loses its data, the counters begin at zero again."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._waiting: list[_Waiting] = []
        self._sender: asyncio.Task[None] | None = None

    async def spend(self, charges: Sequence[Charge]) -> list[Spent]:
        """Count a request in all of its quotas if all of them admit it. Return the result for each quota. Raises
        `RedisUnavailable`.
        """
        made = _Waiting(charges, asyncio.get_running_loop().create_future())
        self._waiting.append(made)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send())
        return await made.spent

    async def _send(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:_BATCH], self._waiting[_BATCH:]
            failure = RedisUnavailable("the control plane is stopping and no longer counts requests in Redis")
            try:
                async with asyncio.timeout(REDIS_SECONDS):
                    found = await self._spend([each.charges for each in batch])
                for each, spent in zip(batch, found, strict=True):
                    if not each.spent.done():
                        each.spent.set_result(spent)
            except RedisUnavailable as error:
                failure = error
            except TimeoutError:
                failure = RedisUnavailable(f"Redis did not answer within {REDIS_SECONDS} s")
            finally:
                # A request that waits for a result that never comes would hang. The requests behind a failed batch fail
                # with it: they would only wait for the next timeout.
                unsent = [each for each in batch if not each.spent.done()]
                if unsent:
                    unsent, self._waiting = [*unsent, *self._waiting], []
                for each in unsent:
                    if not each.spent.done():
                        each.spent.set_exception(failure)

    async def _spend(self, requests: Sequence[Sequence[Charge]]) -> list[list[Spent]]:
        commands = [
            command
            for charges in requests
            for charge in charges
            for command in (_spend(charge, 1), ("EVALSHA", _READ, 2, *_keys(charge), charge.quota.seconds))
        ]
        found = iter(await self._answers(commands))
        spent = [[_spent(charge, next(found), next(found)) for charge in charges] for charges in requests]
        # The scripts count in one quota each. What one quota counted before another one refused is subtracted:
        # otherwise the refused requests of one principal would use up the quota of its project.
        excess = [each for one in spent if not is_admitted(one) for each in one if each.admitted]
        if excess:
            await self._answers([_spend(each.charge, -1) for each in excess])
        return [one if is_admitted(one) else [_subtracted(each) for each in one] for one in spent]

    async def _answers(self, commands: list[Command]) -> list[Any]:
        found = await answers(self._redis, commands)
        # Another process may load the scripts while this batch is executed. Do not repeat a command that was executed:
        # it would count its request twice.
        missing = [number for number, each in enumerate(found) if isinstance(each, NoScriptError)]
        if missing:
            await answers(self._redis, _LOAD)
            repeated = await answers(self._redis, [commands[number] for number in missing])
            for number, answer in zip(missing, repeated, strict=True):
                found[number] = answer
        for each in found:
            if isinstance(each, Exception):
                raise RedisUnavailable(f"Redis refused a command: {type(each).__name__}: {each}")
        return found


def _keys(charge: Charge) -> tuple[str, str]:
    """Return the Redis keys of the counter of a charge: the key of the previous window and that of the current one."""
    key = f"sliceplane:requests:{charge.key}"
    return f"{key}/previous", key


def _spend(charge: Charge, requests: int) -> Command:
    return ("EVALSHA", _SPEND, 2, *_keys(charge), charge.quota.limit, charge.quota.seconds, requests)


def _spent(charge: Charge, admitted: object, read: Sequence[Any]) -> Spent:
    previous, _, current, ttl_ms = read
    # The key of the current window expires one window later, as it becomes the previous one.
    left = max(0, ttl_ms) / 1000 - charge.quota.seconds
    return Spent(charge, bool(admitted), Window(int(previous or 0), int(current or 0), max(0.0, left)))


def _subtracted(spent: Spent) -> Spent:
    window = spent.window
    return spent._replace(window=window._replace(current=window.current - 1)) if spent.admitted else spent
