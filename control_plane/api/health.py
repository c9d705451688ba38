"""Health checks: do Postgres and Redis answer, and do the followers of the ledger have a leader that keeps up?

There are five checks. Only `postgres` concerns a single replica of the API: without the database it can answer no
request. Redis, the dispatcher, the projector and the sealer are shared by all replicas, so taking one replica out of
service does not help there. Without Redis or a dispatcher, requests are still answered and recorded but no order
reaches a node; without a projector, lists fall behind; without a sealer, new events are not protected against changes.

A leading follower holds an advisory lock of Postgres for as long as its session lives
(`control_plane.following.leading`). Its lag is the age of the oldest event after its checkpoint, so it is 0 while there
is nothing to do, however long that is.

Requests for the results need no credentials, so their number must not determine the number of queries: `HealthChecks`
runs each check at most once per second.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from control_plane.database import reading
from control_plane.outage import DATABASE_UNAVAILABLE
from control_plane.programs import SERVER
from control_plane.queues.redis_nodes import RedisUnavailable, answers
from control_plane.work.slot_counts import FOLLOWER
from read_models.projections import PROJECTIONS

LONGEST_LAG_SECONDS: Final = 30.0
"""Lag above which a follower does not keep up. An idle follower reads an event within 20 ms of its commit."""
DATABASE_SECONDS: Final = 3.0
FRESH_SECONDS: Final = 1.0
"""Minimum time between two starts of the same check in a process. Requests in between get the previous result."""
FOLLOWERS: Final[Mapping[str, tuple[str, ...]]] = {
    "dispatcher": ("dispatcher",),
    "projector": (FOLLOWER, *(each.name for each in PROJECTIONS.values() if not each.inline)),
    "sealer": ("sealer",),
}
"""Programs that follow the ledger, each with the names of its checkpoints. Of the processes of one program, only one
leads. The checkpoint of the sealer is the size of the newest signed head.
"""
CHECKS: Final = ("postgres", "redis", *FOLLOWERS)
# `ledger.lead` takes a lock with two keys: the class 21329, and the hash of the name as an unsigned number.
_FOLLOWER: Final = sa.text("""
select exists (
         select from pg_locks
          where locktype = 'advisory' and granted and objsubid = 2 and classid = 21329
            and database = (select oid from pg_database where datname = current_database())
            and objid::bigint = hashtext(:name)::bigint & 4294967295
       ) as leads,
       coalesce(max(late.behind), 0) as behind,
       coalesce(max(extract(epoch from late.age)), 0)::float as lag_seconds,
       max(late.error) as error
  from unnest(cast(:checkpoints as text[])) as follower(name)
  left join (
         select name, position, stopped_at from read.checkpoint
         union all
         select 'sealer', (select size from ledger.tree_head order by number desc limit 1), null
       ) at on at.name = follower.name
 cross join lateral (
    select greatest((select max(position) from ledger.event) - coalesce(at.position, 0), 0) as behind,
           (select greatest(clock_timestamp() - e.recorded_at, interval '0') from ledger.event e
             where e.position > coalesce(at.position, 0) order by e.position limit 1) as age,
           case when at.stopped_at is not null
                then format('%s is stopped by the event at position %s', follower.name, at.stopped_at) end as error
 ) as late
""")


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one health check. `ok` is None if unknown; figures that do not apply are None."""

    name: str
    ok: bool | None
    message: str
    latency_ms: float | None = None
    leads: bool | None = None
    behind: int | None = None
    lag_seconds: float | None = None


async def check_postgres(engine: AsyncEngine) -> Check:
    """Check that Postgres answers a query within `DATABASE_SECONDS`."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(DATABASE_SECONDS), reading(engine) as conn:
            await conn.execute(sa.text("select 1"))
    except DATABASE_UNAVAILABLE:
        return Check("postgres", ok=False, message="Postgres does not answer")
    return Check("postgres", ok=True, message="Postgres answers", latency_ms=_since(began))


async def check_redis(redis: Redis) -> Check:
    """Check that Redis answers a PING."""
    began = time.monotonic()
    try:
        [answer] = await answers(redis, [("PING",)])
    except RedisUnavailable:
        answer = None
    if answer not in (True, b"PONG", "PONG"):
        return Check("redis", ok=False, message="Redis does not answer: no order reaches a node")
    return Check("redis", ok=True, message="Redis answers", latency_ms=_since(began))


async def check_follower(engine: AsyncEngine, name: str) -> Check:
    """Check that one process of a program that follows the ledger (dispatcher, projector) leads and keeps up."""
    try:
        async with asyncio.timeout(DATABASE_SECONDS), reading(engine) as conn:
            found = await _follower(conn, name)
    except DATABASE_UNAVAILABLE:
        return Check(
            name,
            ok=None,
            message=f"the state of the {name} is unknown: Postgres, which stores its checkpoint, does not answer",
        )
    return judged(
        name, leads=found.leads, behind=found.behind, lag_seconds=found.lag_seconds, error=found.error
    )


def judged(name: str, *, leads: bool, behind: int, lag_seconds: float, error: str | None) -> Check:
    """Return the result of the health check of the follower of the ledger `name`.

    `behind` is the number of ledger positions after the follower's checkpoint; `error` names the event that stopped the
    follower.
    """
    ok, message = True, f"a process of the {name} is the leader and keeps up with the ledger"
    if not leads:
        ok, message = False, f"no process of the {name} is the leader; start one: {SERVER} {name}"
    elif error is not None:
        ok, message = False, f"{error}; see sliceplane projections list"
    elif lag_seconds > LONGEST_LAG_SECONDS:
        limit = f"the limit is {LONGEST_LAG_SECONDS:.0f} s"
        ok, message = False, f"the {name} is {lag_seconds:.0f} s behind the ledger, and {limit}; see its log"
    return Check(name, ok, message, leads=leads, behind=behind, lag_seconds=round(lag_seconds, 3))


class HealthChecks:
    """The health checks of one process. Each one runs at most once per `FRESH_SECONDS` and never twice at the same
    time; all requests share its result.
    """

    def __init__(self, checks: Mapping[str, Callable[[], Awaitable[Check]]]) -> None:
        self._shared = {name: _Shared(run) for name, run in checks.items()}
        self.names: Final = tuple(checks)

    async def result(self, name: str) -> Check:
        """Return the result of one check: of the run in progress, or of the last run if it began at most
        `FRESH_SECONDS` ago, or else of a new run.
        """
        return await self._shared[name].result()

    async def results(self) -> list[Check]:
        """Return the results of all checks, which run concurrently."""
        return list(await asyncio.gather(*(self.result(name) for name in self.names)))


class _Shared:
    """One health check. Requests that arrive while it runs, or shortly after it began, share its result."""

    def __init__(self, run: Callable[[], Awaitable[Check]]) -> None:
        self._run = run
        self._running: asyncio.Task[Check] | None = None
        self._began = 0.0

    async def result(self) -> Check:
        now = time.monotonic()
        if self._running is None or (self._running.done() and now - self._began >= FRESH_SECONDS):
            self._began = now
            self._running = asyncio.create_task(self._checked())
        # A disconnected caller must not cancel the check of the others.
        return await asyncio.shield(self._running)

    async def _checked(self) -> Check:
        return await self._run()


def checks(engine: AsyncEngine, redis: Redis) -> dict[str, Callable[[], Awaitable[Check]]]:
    """Return the functions that run the health checks, by the name of the check."""
    followers = {name: _of_follower(engine, name) for name in FOLLOWERS}
    return {"postgres": lambda: check_postgres(engine), "redis": lambda: check_redis(redis), **followers}


def _of_follower(engine: AsyncEngine, name: str) -> Callable[[], Awaitable[Check]]:
    return lambda: check_follower(engine, name)


async def _follower(conn: AsyncConnection, name: str) -> sa.Row[Any]:
    values = {"name": name, "checkpoints": list(FOLLOWERS[name])}
    return (await conn.execute(_FOLLOWER, values)).one()


def _since(began: float) -> float:
    return round((time.monotonic() - began) * 1000, 1)
