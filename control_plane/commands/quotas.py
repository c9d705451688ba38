"""Quotas of a request: read the limits of its project and its caller, and check them (ALC-13).

A request is checked twice. The first check is before placement and takes no lock, so that a request that exceeds a
limit is refused without a search for slots. The second check decides. It is made with the rows of use already changed
and the lock of each holder that has a limit, and the lock is held only from there to the commit. So requests of a
project with limits take turns for their appends only, and a project without limits takes no such lock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.decisions.access import unknown_project
from control_plane.decisions.budgets import NOTHING, Month, exceeded_budget, month_of, weight_of
from control_plane.decisions.projects import against_changing
from control_plane.decisions.public_addresses import AddressRequest, IngressRequest
from control_plane.decisions.quotas import (
    ExceededLimit,
    Limits,
    Scope,
    amount_limits,
    exceeded_by,
    over_quota,
)
from control_plane.decisions.refusals import Objection
from control_plane.handle import LastCheck, RetryWithoutLocks
from events.allocations import AllocationRequested
from events.derived.quotas import NOTHING_USED, QuotaUse
from events.ledger.tables import event
from events.projects import ProjectLimits
from events.slots import SlotUse
from events.values import (
    AllocationId,
    ProjectId,
    SkuName,
    StreamId,
    stream_of_allocation,
    stream_of_principal,
    stream_of_project,
)
from read_models import projects, quota_use, waiting
from read_models.commitments import commitments
from read_models.compiled import CompiledQuery
from read_models.principals import limits_in, principal
from read_models.projects import ProjectRow


class Budget(NamedTuple):
    """The budget of a project in a month, and what of it was committed as of the last commit. `now` is the time of the
    request.
    """

    project: ProjectId
    limit: str
    month: Month
    now: datetime
    committed: Decimal

    def exceeded(self, committed: Decimal, cost: Decimal) -> list[ExceededLimit]:
        """Return this budget if a request that costs `cost` in the month does not fit into it."""
        return exceeded_budget(self.project, self.limit, committed, cost)


class Quota(NamedTuple):
    """The limits of a project or a caller, and its use as of the last commit. `stream` is that of the holder."""

    scope: Scope
    holder: str
    stream: StreamId
    limits: Limits
    used: QuotaUse


_NO_LIMITS: Final = ProjectLimits()


@dataclass(frozen=True, slots=True)
class Quotas:
    """The limits of the project of a request, and the quotas that apply: those of its project and its caller, as far as
    they have limits of amounts.
    """

    quotas: tuple[Quota, ...]
    project_limits: ProjectLimits = _NO_LIMITS
    reserved: Mapping[ProjectId, Mapping[SkuName, int]] = field(default_factory=dict)
    """The reservations of all projects."""
    budget: Budget | None = None
    """Budget of the project; None if it has none, or if the request cannot cost anything."""

    def cost_of_lease(self, use: SlotUse, request: AllocationRequested) -> Decimal:
        """Return what the lease of a request costs in the month of the budget, as a weight, if it begins now; 0 without
        a budget. `use` is what each of its slots counts.
        """
        if (budget := self.budget) is None:
            return NOTHING
        end = budget.now + timedelta(seconds=request.lease_seconds)
        return weight_of(use.price_per_hour, request.slot_count, budget.now, end, budget.month)

    def exceeded(self, requested: QuotaUse, cost: Decimal = NOTHING) -> list[ExceededLimit]:
        """Return the limits that a request would exceed, as of the last commit. `cost` is what it costs in the month of
        the budget, as a weight.
        """
        exceeded = [limit for each in self.quotas for limit in _exceeded(each, each.used, requested)]
        return exceeded + (self.budget.exceeded(self.budget.committed, cost) if self.budget else [])

    def last_check(
        self, requested: QuotaUse, cost: Decimal = NOTHING, *, may_retry: bool = False
    ) -> LastCheck | None:
        """Return the check that decides whether a request may have these amounts and cost; None if no limit applies. It
        raises `NotAdmitted`; if the request `may_retry`, it raises `RetryWithoutLocks` instead.
        """
        limited = [each for each in self.quotas if _limits_any(each.limits, requested)]
        budget = self.budget if cost > 0 else None
        if not limited and budget is None:
            return None

        async def check(conn: AsyncConnection) -> None:
            holders = {each.stream for each in limited}
            if budget is not None:
                holders.add(stream_of_project(budget.project))
            used = await quota_use.held_use(conn, holders)
            exceeded = [
                limit
                for each in limited
                for limit in _exceeded(each, used[each.stream].minus(requested), requested)
            ]
            if budget is not None:
                # A statement of its own after the lock: it sees the commitments of each earlier holder of the lock.
                exceeded += budget.exceeded(await _committed(conn, budget), cost)
            if exceeded:
                raise RetryWithoutLocks if may_retry else over_quota(exceeded)

        return check


UNLIMITED = Quotas(())


def _exceeded(quota: Quota, used: QuotaUse, requested: QuotaUse) -> list[ExceededLimit]:
    return exceeded_by(quota.scope, quota.holder, quota.limits, used, requested)


def _limits_any(limits: Limits, requested: QuotaUse) -> bool:
    return any(getattr(requested, name) > 0 for name in amount_limits(limits))


_LIMITS: Final = (
    sa.select(principal.c.limits)
    .where(principal.c.actor == sa.bindparam("actor", type_=sa.Text))
    .scalar_subquery()
)
_HOLD: Final = CompiledQuery(
    sa.select(
        projects.project,
        _LIMITS.label("principal_limits"),
        projects.all_reservations().label("reserved"),
        waiting.any_waiting().label("any_waiting"),
    )
    .where(projects.project.c.project == sa.bindparam("project", type_=sa.Text))
    .with_for_update(read=True, of=projects.project)
)


class HeldProject(NamedTuple):
    """Objections to the use of a project for an allocation, and the quotas that apply to the request. `any_waiting` is
    whether requests of any project wait for capacity.
    """

    objections: list[Objection]
    quotas: Quotas
    any_waiting: bool


async def hold_project(
    conn: AsyncConnection, project: ProjectId, actor: str | None, most_waiting: int | None = None
) -> HeldProject:
    """Return the objections to the use of a project for an allocation, and the quotas that apply to requests of the
    caller `actor` in it (None: only those of the project). `most_waiting` is the limit of waiting requests if the
    project has none; None: no limit of them applies.

    Until the transaction ends, no other transaction can archive the project or change its limits. Rows of projects
    are locked before rows of slots.
    """
    found = await _HOLD.rows(conn, {"project": project, "actor": actor})
    if not found:
        return HeldProject([unknown_project(project, "/project")], UNLIMITED, any_waiting=False)
    [row] = found
    held = ProjectRow(row)
    limits = held.limits
    if most_waiting is not None and limits.waiting_requests is None:
        limits = msgspec.structs.replace(limits, waiting_requests=most_waiting)
    quotas = [Quota("project", project, stream_of_project(project), limits, NOTHING_USED)]
    if actor is not None:
        own = limits_in(row["principal_limits"])
        quotas.append(Quota("principal", actor, stream_of_principal(actor), own, NOTHING_USED))
    limited = [each for each in quotas if amount_limits(each.limits)]
    if limited:
        used = await quota_use.used_by(conn, [each.stream for each in limited])
        limited = [each._replace(used=used[each.stream]) for each in limited]
    against = against_changing(project, held.archived, "/project")
    reserved = Quotas(tuple(limited), held.limits, row["reserved"] or {})
    return HeldProject(against, reserved, any_waiting=row["any_waiting"])


async def hold_project_of(conn: AsyncConnection, allocation: AllocationId) -> Quotas:
    """Return the quotas of the project of an allocation, and hold the project like `hold_project`. An allocation that
    does not exist has none.
    """
    stream = stream_of_allocation(allocation)
    query = sa.select(event.c.project).where(event.c.stream_id == stream, event.c.version == 1)
    project = await conn.scalar(query)
    if project is None:
        return UNLIMITED
    return (await hold_project(conn, ProjectId(project), None)).quotas


async def with_budget(conn: AsyncConnection, project: ProjectId, quotas: Quotas, now: datetime) -> Quotas:
    """Return the quotas of a request for a lease with the budget of its project, if it has one."""
    limit = quotas.project_limits.budget_per_month
    if limit is None:
        return quotas
    budget = Budget(project, limit, month_of(now), now, NOTHING)
    return replace(quotas, budget=budget._replace(committed=await _committed(conn, budget)))


async def _committed(conn: AsyncConnection, budget: Budget) -> Decimal:
    found = await commitments(conn, [budget.project], *budget.month, budget.now)
    return found[budget.project].committed


def ingress_use(rules: Sequence[IngressRequest]) -> QuotaUse:
    """Return the amounts that requested ingress rules count."""
    addresses = sum(isinstance(each.to, AddressRequest) for each in rules)
    return QuotaUse(public_addresses=addresses, public_ports=len(rules) - addresses)
