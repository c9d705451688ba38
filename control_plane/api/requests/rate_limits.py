"""Limits of the rate of requests, so that one caller cannot take the service from the others (429 `rate_limited`).

Every request of a principal counts in the quota of the principal. If the principal is limited to exactly one project,
the request also counts in the quota of that project, which all such principals of the project share. Other principals
(admins, auditors and callers of several projects) spend only their own quota: which project a request concerns is known
only after its body was read, and a limit has to refuse before that. A request counts whatever its answer is, except if
a quota refuses it. Nodes have their report budget instead (`control_plane.work.report_budget`), and routes that require
no credentials have no limit.

Three counters are queried one after the other, the cheapest first:

1. In this process, by the hash of the presented secret, with the quota of a principal: a flood is refused without a
   query. Only secrets that were verified before have such a counter, until one of their requests is refused as
   unauthorised, for example after a revocation.
2. In this process, by source address: requests without valid credentials, or with a token that gives no role. An
   exhausted quota also refuses secrets that this process has not verified yet, without a look-up, so that the response
   does not reveal whether a guessed secret is valid. Verified callers behind the same address are not affected.
   Requests in progress are not counted yet, so their number can exceed the quota.
3. In Redis, by principal and project, shared by all API processes. If Redis does not answer, the requests in progress
   wait for it once, for at most twice `REDIS_SECONDS`. From then on the same quotas are counted in this process, until
   Redis answers a background task that tries it every `RETRY_SECONDS`. No request is refused because Redis is
   unavailable.

A principal may send its whole quota at once. So that other principals do not wait behind it, each process spreads out
the requests of a principal, and those of a project: it admits `UNDELAYED` requests at once and further ones at `PACE`
per second; a request waits until it is admitted.

A refusal needs little processor time, but a client that ignores Retry-After could cause many per second. The first
`AT_ONCE` refusals of a sender are answered at once, and the next ones after `HOLD_SECONDS` to twice that time, so a
connection that waits for its answer gets at most one per second.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from math import ceil
from typing import Final

import structlog
from fastapi import Request
from redis.asyncio import Redis

from control_plane.api.audit.access_log import access_log_of
from control_plane.api.audit.entries import entry_of
from control_plane.api.audit.sources import network_of
from control_plane.api.requests.rate_windows import (
    Charge,
    LocalWindows,
    MemoryWindows,
    Quota,
    SharedWindows,
    Spent,
    Turns,
)
from control_plane.api.requests.response_headers import set_header
from control_plane.decisions.access import Principal
from control_plane.decisions.refusals import Forbidden, Objection, Throttled, Unauthorised
from control_plane.outage import rest
from control_plane.queues.redis_nodes import RedisUnavailable
from control_plane.settings import Settings

log = structlog.get_logger()
RETRY_SECONDS: Final = 1.0
"""Interval in which an unavailable Redis is tried again."""
HOLD_SECONDS: Final = 1.0
"""Minimum delay of a refusal, for a sender that continues after `AT_ONCE` refusals. The maximum is twice as long."""
AT_ONCE: Final = 20
"""Number of refusals per minute that a sender gets without a delay."""
PACE: Final = 50.0
"""Rate, in requests per second, at which one process admits the waiting requests of a principal or a project."""
UNDELAYED: Final = 10
"""Number of requests that one process admits without a delay from a principal or a project that has paused."""
_MOST_HELD: Final = 1000
"""Maximum number of refusals that are delayed at the same time. Further ones are sent at once, because each delayed one
uses memory.
"""
_MOST: Final = 10_000
_REFUSALS: Final = Quota("refusals", AT_ONCE, 60)
_PROBE: Final = Charge(Quota("probe", 1_000_000, 60), "api")


class RateLimits:
    """Limits of the rate of requests in one API process. Not thread-safe: used by one event loop."""

    def __init__(self, settings: Settings, redis: Redis) -> None:
        seconds = settings.request_window_seconds
        self._principal = _quota("principal", settings.requests_per_minute, seconds)
        self._project = _quota("project", settings.project_requests_per_minute, seconds)
        self._unauthenticated = _quota("unauthenticated", settings.unauthenticated_per_minute, seconds)
        self._verified, self._sources = LocalWindows(_MOST), LocalWindows(_MOST)
        self._refusals, self._held = LocalWindows(_MOST), 0
        self._turns = Turns(_MOST, PACE, UNDELAYED)
        self._shared, self._memory = SharedWindows(redis), MemoryWindows()
        self._return: asyncio.Task[None] | None = None
        """Background task that waits until Redis is available again; None while Redis is available."""

    async def count_invalid(self, request: Request) -> None:
        """Count a request without valid credentials. Raises `Throttled` if its source exceeds its quota."""
        if self._unauthenticated is not None:
            source = _network(request)
            await self._settle(request, [self._sources.spend(Charge(self._unauthenticated, source))], source)

    @asynccontextmanager
    async def verification(self, request: Request, digest: str) -> AsyncIterator[None]:
        """Let the `with` block verify a secret with this SHA-256, which raises `Unauthorised` if it is not valid, and
        `Forbidden` for a valid token that identifies no principal.

        Raises `Throttled` without running the block if the secret or the source of the request exceeds its quota.
        """
        # Without a quota of principals, the windows still have to know which secrets were verified.
        mine = Charge(self._principal or Quota("verified", 1, 1), digest)
        known = mine in self._verified
        if known and self._principal is not None:
            await self._settle(request, [self._verified.spend(mine)], digest)
        elif not known and self._unauthenticated is not None:
            source = Charge(self._unauthenticated, _network(request))
            window = self._sources.read(source)
            if not window.remaining(source.quota):
                await self._settle(request, [Spent(source, admitted=False, window=window)], source.subject)
        try:
            yield
        except (Unauthorised, Forbidden):
            # The secret may have been revoked since. From now on it counts like one that was never valid: otherwise a
            # source could send an unlimited number of requests with the sessions of a revoked key.
            self._verified.forget(mine)
            await self.count_invalid(request)
            raise
        if not known:
            self._verified.spend(mine)

    async def spend(self, request: Request, principal: Principal) -> None:
        """Count a request of a principal, and wait until the rate limit admits it. Raises `Throttled` if a quota
        refuses it.
        """
        charges = []
        if self._principal is not None:
            charges.append(Charge(self._principal, principal.actor))
        if self._project is not None and principal.projects is not None and len(principal.projects) == 1:
            charges.append(Charge(self._project, next(iter(principal.projects))))
        if charges:
            await self._settle(request, await self._spend(charges), principal.actor)
            await _wait(request, max(map(self._turns.take, charges)))

    async def _spend(self, charges: Sequence[Charge]) -> list[Spent]:
        if self._return is None:
            try:
                return await self._shared.spend(charges)
            except RedisUnavailable as error:
                self._use_memory(error)
        return await self._memory.spend(charges)

    async def _settle(self, request: Request, spent: Sequence[Spent], sender: str) -> None:
        """Set the rate limit headers of the response (draft-ietf-httpapi-ratelimit-headers-10). Raises `Throttled` if a
        quota refuses the request. If many requests of `sender` were refused recently, wait before raising.
        """
        policies = [
            f'"{each.quota.name}";q={each.quota.limit};w={each.quota.seconds}' for each, _, _ in spent
        ]
        set_header(request, "RateLimit-Policy", ", ".join(policies))
        set_header(request, "RateLimit", ", ".join(_state(each) for each in spent))
        refused = [each for each in spent if not each.admitted]
        if refused:
            if not self._refusals.spend(Charge(_REFUSALS, sender)).admitted:
                await self._hold(request)
            raise Throttled(max(map(_retry_after, refused)), *map(_objection, refused))

    async def _hold(self, request: Request) -> None:
        if self._held < _MOST_HELD:
            self._held += 1
            try:
                # Connections that are refused at the same time must not all be answered at the same time.
                await _wait(request, HOLD_SECONDS * random.uniform(1, 2))  # noqa: S311 (no secret)
            finally:
                self._held -= 1

    def _use_memory(self, error: RedisUnavailable) -> None:
        if self._return is None:  # else a concurrent request found the same
            log.warning("request_limits_counted_in_process", error=error.reason)
            self._return = asyncio.create_task(self._await_redis())

    async def _await_redis(self) -> None:
        while True:
            await rest(RETRY_SECONDS)
            try:
                # Count, because a Redis without free memory answers a PING.
                await self._shared.spend([_PROBE])
            except RedisUnavailable:
                continue
            log.info("request_limits_counted_in_redis")
            self._return = None
            return


def _quota(name: str, per_minute: int, seconds: int) -> Quota | None:
    return Quota(name, max(1, per_minute * seconds // 60), seconds) if per_minute else None


async def _wait(request: Request, seconds: float) -> None:
    if seconds > 0:
        # A request that waits needs no row soon. If it counted as one, the access log would gather rows, and all other
        # requests would wait for that.
        access_log_of(request).passed_by(entry_of(request))
        await asyncio.sleep(seconds)


def _network(request: Request) -> str:
    """Return the address or the IPv6 network that a request came from."""
    return "" if request.client is None else network_of(request.client.host)


def _state(spent: Spent) -> str:
    quota = spent.charge.quota
    return f'"{quota.name}";r={spent.window.remaining(quota)};t={_retry_after(spent)}'


def _retry_after(spent: Spent) -> int:
    """Return the whole seconds, rounded up, until the quota admits more requests than it admits now."""
    return max(1, ceil(spent.window.regained_in(spent.charge.quota)))


def _objection(spent: Spent) -> Objection:
    quota, subject = spent.charge
    what = {
        "principal": "this caller",
        "project": f"all callers of the project {subject} together",
        "unauthenticated": f"callers without valid credentials at {'network' if '/' in subject else 'address'} {subject} together",
    }[quota.name]
    reason = f"{what} may send {quota.limit} requests in {quota.seconds} s; retry in {_retry_after(spent)} s"
    return Objection("rate_limited", reason)
