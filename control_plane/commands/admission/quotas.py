"""Quotas of a request: read the limits of its project and its caller, and check them (ALC-13).

A request is checked twice. The first check is before placement and takes no lock, so that a request that exceeds a
limit is refused without a search for slots. The second check decides. When it runs, the transaction has already changed
the rows of use, and it takes the lock of each holder of a limit (project or caller) until the commit. So requests of a
project with limits take turns for their appends only, and requests without limits take no such lock.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
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
from control_plane.handle import LastCheck, RetryWithoutLocks, UseByHolder
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
from read_models.compiled import CompiledQuery, Query, Rows, rows_together
from read_models.principals import limits_in, principal
from read_models.projects import ProjectRow


class Budget(NamedTuple):
    """The budget of a project in a calendar month: `limit` is the budget as money, and `committed` the part of it that
    leases commit, as a weight (`decisions.budgets`), as of the last committed transaction. `now` is the time of the
    request.
    """

    project: ProjectId
    limit: str
    month: Month
    now: datetime
    committed: Decimal

    def exceeded(self, committed: Decimal, cost: Decimal) -> list[ExceededLimit]:
        """Return this budget as an exceeded limit if a request does not fit into it, else an empty list. `committed` is
        the weight that leases commit, and `cost` the weight of the request, both in the month.
        """
        return exceeded_budget(self.project, self.limit, committed, cost)


class Quota(NamedTuple):
    """The limits of a project or a caller (the holder), and what the holder uses of them as of the last committed
    transaction. `stream` is the event stream of the holder.
    """

    scope: Scope
    holder: str
    stream: StreamId
    limits: Limits
    used: QuotaUse


_NO_LIMITS: Final = ProjectLimits()


@dataclass(frozen=True, slots=True)
class Quotas:
    """The quotas that apply to a request. `quotas` has those of its project and of its caller that limit an amount, and
    `project_limits` all limits of the project.
    """

    quotas: tuple[Quota, ...]
    project_limits: ProjectLimits = _NO_LIMITS
    reserved: Mapping[ProjectId, Mapping[SkuName, int]] = field(default_factory=dict)
    """The reservations of all projects: the number of reserved slots by project and SKU."""
    budget: Budget | None = None
    """Budget of the project; None if the project has no budget, or if the request cannot cost anything."""

    def cost_of_lease(self, use: SlotUse, request: AllocationRequested) -> Decimal:
        """Return what the lease of a request costs in the month of the budget, as a weight, if the lease begins at the
        time `now` of the budget; 0 without a budget. `use` is what each slot of the request counts towards quotas.
        """
        if (budget := self.budget) is None:
            return NOTHING
        end = budget.now + timedelta(seconds=request.lease_seconds)
        return weight_of(use.price_per_hour, request.slot_count, budget.now, end, budget.month)

    def exceeded(self, requested: QuotaUse, cost: Decimal = NOTHING) -> list[ExceededLimit]:
        """Return the limits that a request would exceed, as of the last committed transaction. `requested` are the
        amounts of the request, and `cost` is what the request costs in the month of the budget, as a weight.
        """
        exceeded = [limit for each in self.quotas for limit in _exceeded(each, each.used, requested)]
        return exceeded + (self.budget.exceeded(self.budget.committed, cost) if self.budget else [])

    def last_check(
        self, requested: QuotaUse, cost: Decimal = NOTHING, *, may_retry: bool = False
    ) -> LastCheck | None:
        """Return the check that decides whether a request may have the amounts `requested` and this cost; None if no
        limit applies. If a limit is exceeded, the check raises `NotAdmitted`, or `RetryWithoutLocks` if `may_retry`.
        """
        return last_check([(self, requested, cost)], may_retry=may_retry)

    def after(self, requested: Mapping[StreamId, QuotaUse]) -> "Quotas":
        """Return these quotas with more in use. `requested` has the amounts to add, by the stream of the project or
        caller.
        """
        quotas = (
            each._replace(used=each.used.plus(requested.get(each.stream, NOTHING_USED)))
            for each in self.quotas
        )
        return replace(self, quotas=tuple(quotas))


UNLIMITED = Quotas(())


def last_check(
    requests: Iterable[tuple[Quotas, QuotaUse, Decimal]], *, may_retry: bool = False
) -> LastCheck | None:
    """Return the check that decides whether requests may have their amounts and costs, either all requests or none;
    None if no limit applies. If a limit is exceeded, the check raises `NotAdmitted`, or `RetryWithoutLocks` if
    `may_retry`.
    """
    limited: dict[StreamId, tuple[Quota, QuotaUse]] = {}
    costs: dict[StreamId, tuple[Budget, Decimal]] = {}
    for quotas, requested, cost in requests:
        if quotas.budget is not None and cost > 0:
            stream = stream_of_project(quotas.budget.project)
            _, before_it = costs.get(stream, (quotas.budget, NOTHING))
            costs[stream] = quotas.budget, before_it + cost
        for each in quotas.quotas:
            if _limits_any(each.limits, requested):
                _, before = limited.get(each.stream, (each, NOTHING_USED))
                limited[each.stream] = each, before.plus(requested)
    if not limited and not costs:
        return None

    async def judge(conn: AsyncConnection, used: UseByHolder) -> None:
        exceeded = [
            limit
            for stream, (quota, requested) in limited.items()
            for limit in _exceeded(quota, used[stream].minus(requested), requested)
        ]
        for budget, cost in costs.values():
            # This statement follows that of the lock, so it reads the commitments of every earlier holder of the lock.
            exceeded += budget.exceeded(await _committed(conn, budget), cost)
        if exceeded:
            raise RetryWithoutLocks if may_retry else over_quota(exceeded)

    return LastCheck(frozenset({*limited, *costs}), judge)


def _exceeded(quota: Quota, used: QuotaUse, requested: QuotaUse) -> list[ExceededLimit]:
    return exceeded_by(quota.scope, quota.holder, quota.limits, used, requested)


def _limits_any(limits: Limits, requested: QuotaUse) -> bool:
    return any(getattr(requested, name) > 0 for name in amount_limits(limits))


def _hold() -> sa.Select[Any]:
    """Return the query that locks the rows of projects in the order of their names, and reads for each project the
    limits of one caller. The parameters `projects` and `actors` are lists of equal length.
    """
    texts = ARRAY(sa.Text)
    given = sa.bindparam("projects", type_=texts), sa.bindparam("actors", type_=texts)
    wanted = sa.func.unnest(*given).table_valued("project", "actor", name="wanted").render_derived()
    limits = sa.select(principal.c.limits).where(principal.c.actor == wanted.c.actor).scalar_subquery()
    return (
        sa.select(
            projects.project,
            wanted.c.actor,
            limits.label("principal_limits"),
            projects.all_reservations().label("reserved"),
            waiting.any_waiting().label("any_waiting"),
        )
        .select_from(sa.join(projects.project, wanted, projects.project.c.project == wanted.c.project))
        .order_by(projects.project.c.project)
        .with_for_update(read=True, of=projects.project)
    )


_HOLD: Final = CompiledQuery(_hold())


class HeldProject(NamedTuple):
    """The result of `hold_project`: the objections to the use of a project for an allocation, and the quotas that apply
    to the request. `any_waiting` is True if a request of any project waits for capacity.
    """

    objections: list[Objection]
    quotas: Quotas
    any_waiting: bool


async def hold_project(
    conn: AsyncConnection, project: ProjectId, actor: str | None, most_waiting: int | None = None
) -> HeldProject:
    """Lock a project, and return the objections to its use for an allocation and the quotas that apply to a request.

    `actor` is the caller of the request; if it is None, only the quotas of the project are returned. `most_waiting` is
    the maximum number of waiting requests of a project that has no such limit of its own; None: no maximum.

    Until the transaction ends, no other transaction can archive the project or change its limits. Each transaction
    locks rows of projects before rows of slots.
    """
    return (await hold_projects(conn, [(project, actor)], most_waiting))[project, actor]


async def hold_projects(
    conn: AsyncConnection,
    wanted: Collection[tuple[ProjectId, str | None]],
    most_waiting: int | None = None,
) -> dict[tuple[ProjectId, str | None], HeldProject]:
    """Lock the projects of several pairs of a project and a caller, and return for each pair what `hold_project`
    returns.
    """
    return held_projects(await rows_together(conn, *projects_queries(wanted)), wanted, most_waiting)


def projects_queries(wanted: Collection[tuple[ProjectId, str | None]]) -> tuple[Query, Query]:
    """Return the queries of `hold_projects`, of which `held_projects` reads the rows."""
    values = {"projects": [project for project, _ in wanted], "actors": [actor for _, actor in wanted]}
    return (_HOLD, values), (quota_use.USED, {"holders": sorted(_holders(wanted))})


def _holders(wanted: Collection[tuple[ProjectId, str | None]]) -> set[StreamId]:
    holders = {stream_of_project(project) for project, _ in wanted}
    return holders | {stream_of_principal(actor) for _, actor in wanted if actor is not None}


def held_projects(
    rows_of: Sequence[Rows],
    wanted: Collection[tuple[ProjectId, str | None]],
    most_waiting: int | None = None,
) -> dict[tuple[ProjectId, str | None], HeldProject]:
    """Return the result of `hold_projects`. `rows_of` are the rows of each of `projects_queries`."""
    held_rows, use_rows = rows_of
    rows = {(row["project"], row["actor"]): row for row in held_rows}
    used = quota_use.by_holder(use_rows, _holders(wanted))
    found = {pair: _limited(*pair, row, most_waiting) for pair, row in rows.items()}
    held = dict[tuple[ProjectId, str | None], HeldProject]()
    for project, actor in wanted:
        if (row := rows.get((project, actor))) is None:
            held[project, actor] = HeldProject(
                [unknown_project(project, "/project")], UNLIMITED, any_waiting=False
            )
            continue
        quotas = Quotas(
            tuple(each._replace(used=used[each.stream]) for each in found[project, actor]),
            ProjectRow(row).limits,
            row["reserved"] or {},
        )
        against = against_changing(project, row["archived"], "/project")
        held[project, actor] = HeldProject(against, quotas, any_waiting=row["any_waiting"])
    return held


def _limited(
    project: ProjectId, actor: str | None, row: Mapping[str, Any], most_waiting: int | None
) -> list[Quota]:
    """Return the quotas of a project and a caller, without those that have no limits of amounts. What the holders use
    is not read yet: `used` is zero.
    """
    limits = ProjectRow(row).limits
    if most_waiting is not None and limits.waiting_requests is None:
        limits = msgspec.structs.replace(limits, waiting_requests=most_waiting)
    quotas = [Quota("project", project, stream_of_project(project), limits, NOTHING_USED)]
    if actor is not None:
        own = limits_in(row["principal_limits"])
        quotas.append(Quota("principal", actor, stream_of_principal(actor), own, NOTHING_USED))
    return [each for each in quotas if amount_limits(each.limits)]


async def hold_project_of(conn: AsyncConnection, allocation: AllocationId) -> Quotas:
    """Lock the project of an allocation like `hold_project`, and return the quotas of the project, without those of a
    caller. For an allocation that does not exist, return `UNLIMITED`.
    """
    stream = stream_of_allocation(allocation)
    query = sa.select(event.c.project).where(event.c.stream_id == stream, event.c.version == 1)
    project = await conn.scalar(query)
    if project is None:
        return UNLIMITED
    return (await hold_project(conn, ProjectId(project), None)).quotas


async def with_budget(conn: AsyncConnection, project: ProjectId, quotas: Quotas, now: datetime) -> Quotas:
    """Return the quotas of a request for a lease, completed by the budget of the project if the project has one."""
    limit = quotas.project_limits.budget_per_month
    if limit is None:
        return quotas
    budget = Budget(project, limit, month_of(now), now, NOTHING)
    return replace(quotas, budget=budget._replace(committed=await _committed(conn, budget)))


async def _committed(conn: AsyncConnection, budget: Budget) -> Decimal:
    found = await commitments(conn, [budget.project], *budget.month, budget.now)
    return found[budget.project].committed


def ingress_use(rules: Sequence[IngressRequest]) -> QuotaUse:
    """Return what requested ingress rules count towards quotas: public addresses and public ports."""
    addresses = sum(isinstance(each.to, AddressRequest) for each in rules)
    return QuotaUse(public_addresses=addresses, public_ports=len(rules) - addresses)
