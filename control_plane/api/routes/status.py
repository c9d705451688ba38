"""`/healthz`, `/readyz` and `/v1/status`: whether the control plane works, and a summary of what needs attention.

`/healthz` concerns the process alone. `/readyz` has the results of all checks and returns 503 unless each is ok: it is
for operators, monitoring, and scripts that wait for a deployment to start. `/readyz/postgres` is for a load balancer in
front of several API replicas: only Postgres is essential to a replica. The other dependencies are shared by all
replicas, and without Redis or a leader nodes must still deliver heartbeats and renew sessions, so a replica stays in
service.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from http import HTTPStatus
from typing import Final, cast

import sqlalchemy as sa
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.api.health import Check, HealthChecks
from control_plane.api.requests.access import HEALTH, AuthenticatedRoute, access
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import plane_of
from control_plane.api.views.task_views import SHOWN
from control_plane.decisions.access import Scope
from control_plane.decisions.refusals import Objection, UnknownName
from control_plane.settings import Settings
from control_plane.work.live_nodes import live_nodes
from control_plane.work.placeable import free_slots_blocked
from control_plane.work.tables import head_sink, parked, task

router = APIRouter(tags=["health"], route_class=AuthenticatedRoute)
_ENDED_BADLY: Final = ("failed", "poisoned", "refused", "expired")
_DRIFT: Final = sa.text("""
select count(*) as open, count(*) filter (where (each -> 'blocks')::bool) as blocking
  from (select node_id, drift from read.node where drift is not null
        union all select node_id, drift from read.slot where drift is not null) as drifting
  join read.node as node using (node_id) cross join jsonb_array_elements(drifting.drift) as each
 where node.state <> 'revoked'
""")
_SLOTS: Final = sa.text("select state, count(*) as number from read.slot group by state order by state")


class CheckView(BaseModel):
    """A check of one part of the control plane. `status`: ok, failed, or unknown if Postgres does not respond.

    `latency_ms` is the response time of a server. For a follower of the ledger, `leads` is whether one of its
    processes leads, `behind` the number of positions after its checkpoint, and `lag_seconds` the age of the oldest
    event among them.
    """

    name: str
    status: str
    message: str
    latency_ms: float | None
    leads: bool | None
    behind: int | None
    lag_seconds: float | None


class ReadinessView(BaseModel):
    """The results of all health checks. `status`: ready, or not_ready if a check is not ok."""

    status: str
    checks: list[CheckView]


class DriftCount(BaseModel):
    """Number of open drifts of nodes and slots, and of those that block placement."""

    open: int
    blocking: int


class TaskCount(BaseModel):
    """Number of failed tasks in the task list, by state, and of parked streams, which the dispatcher cannot process."""

    failed: int
    poisoned: int
    refused: int
    expired: int
    parked: int


class BlockedSlotCount(BaseModel):
    """Numbers of slots that are free but cannot get a slice now, for example because their node is unreachable.
    `by_reason` has one number for each reason (`blocked_by` of the slot), and `by_sku` one for each SKU. A slot that is
    offered under several SKUs is counted for each of them.
    """

    by_reason: dict[str, int]
    by_sku: dict[str, int]


class StatusView(ReadinessView):
    """The health checks, and counts of what needs attention. `nodes` counts nodes by the state in their views, and
    `slots` slots by their state. `blocked_slots` counts those of the free slots in which no slice can be placed now,
    such as the slots of unreachable and cordoned nodes. `failing_sinks` are the sinks of signed heads that store none
    now.
    """

    nodes: dict[str, int]
    slots: dict[str, int]
    blocked_slots: BlockedSlotCount
    drift: DriftCount
    tasks: TaskCount
    failing_sinks: list[str]


_FAILING_SINKS: Final = (
    sa.select(head_sink.c.name).where(head_sink.c.error.is_not(None)).order_by(head_sink.c.name)
)


@router.get("/healthz", openapi_extra=HEALTH)
async def alive() -> dict[str, str]:
    """Return 200 while the process answers requests."""
    return {"status": "alive"}


@router.get("/readyz", responses={503: {"model": ReadinessView}}, openapi_extra=HEALTH)
async def ready(request: Request, response: Response) -> ReadinessView:
    """Return the results of all health checks: 200 if all are ok, else 503. Each check runs at most once a second."""
    return _answer(response, await _checks_of(request).results())


@router.get(
    "/readyz/{check}", responses={503: {"model": ReadinessView}, 404: PROBLEMS[404]}, openapi_extra=HEALTH
)
async def ready_in(request: Request, response: Response, check: str) -> ReadinessView:
    """Return the result of a health check: postgres, redis, dispatcher or projector. It runs at most once a second."""
    checks = _checks_of(request)
    if check not in checks.names:
        reason = f"unknown check {check[:64]!r}; choose one of {', '.join(checks.names)}"
        raise UnknownName(Objection("unknown_check", reason))
    return _answer(response, [await checks.result(check)])


@router.get("/v1/status", responses=PROBLEMS, openapi_extra=access(Scope.FLEET_READ))
async def status(request: Request) -> StatusView:
    """Return the checks, and counts of nodes, open drift and tasks that need attention. 200 even if a check failed."""
    plane = plane_of(request)
    found = await _checks_of(request).results()
    async with plane.engine.connect() as conn:
        return StatusView(
            **dict(_readiness(found)),
            nodes=await _nodes(conn, plane.settings.unreachable_after),
            slots={row.state: row.number for row in await conn.execute(_SLOTS)},
            blocked_slots=await _blocked_slots(conn, plane.settings),
            drift=await _drift(conn),
            tasks=await _tasks(conn),
            failing_sinks=list(await conn.scalars(_FAILING_SINKS)),
        )


def _checks_of(request: Request) -> HealthChecks:
    return cast(HealthChecks, request.app.state.health_checks)


def _answer(response: Response, found: Sequence[Check]) -> ReadinessView:
    view = _readiness(found)
    if view.status != "ready":
        response.status_code = HTTPStatus.SERVICE_UNAVAILABLE
    return view


def _readiness(found: Sequence[Check]) -> ReadinessView:
    checks = [_check(each) for each in found]
    status = "ready" if all(each.ok for each in found) else "not_ready"
    return ReadinessView(status=status, checks=checks)


def _check(found: Check) -> CheckView:
    words = {True: "ok", False: "failed", None: "unknown"}
    fields = asdict(found)
    return CheckView(status=words[fields.pop("ok")], **fields)


async def _nodes(conn: AsyncConnection, unreachable_after: timedelta) -> dict[str, int]:
    found = live_nodes(unreachable_after).subquery()
    query = sa.select(found.c.live_state, sa.func.count().label("number")).group_by(found.c.live_state)
    return {row.live_state: row.number for row in await conn.execute(query.order_by(found.c.live_state))}


async def _blocked_slots(conn: AsyncConnection, settings: Settings) -> BlockedSlotCount:
    found = await free_slots_blocked(
        conn, settings.unreachable_after, simulated_allowed=settings.place_on_simulated_nodes
    )
    by_reason, by_sku = Counter[str](), Counter[str]()
    for each in found:
        by_reason[each.code] += each.number
        by_sku.update(dict.fromkeys(each.skus, each.number))
    return BlockedSlotCount(by_reason=dict(by_reason), by_sku=dict(by_sku))


async def _drift(conn: AsyncConnection) -> DriftCount:
    row = (await conn.execute(_DRIFT)).one()
    return DriftCount(open=row.open, blocking=row.blocking)


async def _tasks(conn: AsyncConnection) -> TaskCount:
    query = sa.select(task.c.state, sa.func.count().label("number")).where(
        SHOWN, task.c.state.in_(_ENDED_BADLY)
    )
    numbers = {row.state: row.number for row in await conn.execute(query.group_by(task.c.state))}
    waiting = await conn.scalar(sa.select(sa.func.count()).select_from(parked))
    return TaskCount(**{name: numbers.get(name, 0) for name in _ENDED_BADLY}, parked=waiting or 0)
