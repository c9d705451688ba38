"""Quotas of a request: read the limits of its project and its caller, and check them (ALC-13).

A request is checked twice. The first check is before placement and takes no lock, so that a request that exceeds a
limit is refused without a search for slots. The second check decides. It is made with the rows of use already changed
and the lock of each holder that has a limit, and the lock is held only from there to the commit. So requests of a
project with limits take turns for their appends only, and a project without limits takes no such lock.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.decisions.access import unknown_project
from control_plane.decisions.projects import against_changing
from control_plane.decisions.public_addresses import AddressRequest, IngressRequest
from control_plane.decisions.quotas import (
    ExceededLimit,
    Limits,
    Scope,
    exceeded_by,
    has_limits,
    over_quota,
)
from control_plane.decisions.refusals import Objection
from control_plane.handle import LastCheck, RetryWithoutLocks
from events.derived.quotas import NOTHING_USED, QuotaUse
from events.ledger.tables import event
from events.values import (
    AllocationId,
    ProjectId,
    StreamId,
    stream_of_allocation,
    stream_of_principal,
    stream_of_project,
)
from read_models import projects, quota_use
from read_models.compiled import CompiledQuery
from read_models.principals import limits_in, principal
from read_models.projects import ProjectRow


class Quota(NamedTuple):
    """The limits of a project or a caller, and its use as of the last commit. `stream` is that of the holder."""

    scope: Scope
    holder: str
    stream: StreamId
    limits: Limits
    used: QuotaUse


@dataclass(frozen=True, slots=True)
class Quotas:
    """The quotas that apply to a request: those of its project and its caller, as far as they have limits."""

    quotas: tuple[Quota, ...]

    def exceeded(self, requested: QuotaUse) -> list[ExceededLimit]:
        """Return the limits that a request would exceed, as of the last commit."""
        return [limit for each in self.quotas for limit in _exceeded(each, each.used, requested)]

    def last_check(self, requested: QuotaUse, *, may_retry: bool = False) -> LastCheck | None:
        """Return the check that decides whether a request may have these amounts; None if no limit applies. It raises
        `NotAdmitted`; if the request `may_retry`, it raises `RetryWithoutLocks` instead.
        """
        return last_check([(self, requested)], may_retry=may_retry)

    def after(self, requested: Mapping[StreamId, QuotaUse]) -> "Quotas":
        """Return these quotas as if other requests already used these amounts of the holders."""
        return Quotas(
            tuple(
                each._replace(used=each.used.plus(requested.get(each.stream, NOTHING_USED)))
                for each in self.quotas
            )
        )


UNLIMITED = Quotas(())


def last_check(requests: Iterable[tuple[Quotas, QuotaUse]], *, may_retry: bool = False) -> LastCheck | None:
    """Return the check that decides whether requests may have their amounts, all of them or none; None if no limit
    applies. It raises `NotAdmitted`, or `RetryWithoutLocks` if `may_retry`.
    """
    limited: dict[StreamId, tuple[Quota, QuotaUse]] = {}
    for quotas, requested in requests:
        for each in quotas.quotas:
            if _limits_any(each.limits, requested):
                _, before = limited.get(each.stream, (each, NOTHING_USED))
                limited[each.stream] = each, before.plus(requested)
    if not limited:
        return None

    async def check(conn: AsyncConnection) -> None:
        used = await quota_use.held_use(conn, [*limited])
        exceeded = [
            limit
            for stream, (quota, requested) in limited.items()
            for limit in _exceeded(quota, used[stream].minus(requested), requested)
        ]
        if exceeded:
            raise RetryWithoutLocks if may_retry else over_quota(exceeded)

    return check


def _exceeded(quota: Quota, used: QuotaUse, requested: QuotaUse) -> list[ExceededLimit]:
    return exceeded_by(quota.scope, quota.holder, quota.limits, used, requested)


def _limits_any(limits: Limits, requested: QuotaUse) -> bool:
    return any(
        getattr(limits, name) is not None and getattr(requested, name) > 0
        for name in limits.__struct_fields__
    )


def _hold() -> sa.Select[Any]:
    """Return the query that locks projects, in the order of their names, and reads the limits of a caller of each."""
    texts = ARRAY(sa.Text)
    given = sa.bindparam("projects", type_=texts), sa.bindparam("actors", type_=texts)
    wanted = sa.func.unnest(*given).table_valued("project", "actor", name="wanted").render_derived()
    limits = sa.select(principal.c.limits).where(principal.c.actor == wanted.c.actor).scalar_subquery()
    return (
        sa.select(projects.project, wanted.c.actor, limits.label("principal_limits"))
        .select_from(sa.join(projects.project, wanted, projects.project.c.project == wanted.c.project))
        .order_by(projects.project.c.project)
        .with_for_update(read=True, of=projects.project)
    )


_HOLD: Final = CompiledQuery(_hold())


async def hold_project(
    conn: AsyncConnection, project: ProjectId, actor: str | None
) -> tuple[list[Objection], Quotas]:
    """Return the objections to the use of a project for an allocation, and the quotas that apply to requests of the
    caller `actor` in it (None: only those of the project).

    Until the transaction ends, no other transaction can archive the project or change its limits. Rows of projects
    are locked before rows of slots.
    """
    return (await hold_projects(conn, [(project, actor)]))[project, actor]


async def hold_projects(
    conn: AsyncConnection, wanted: Collection[tuple[ProjectId, str | None]]
) -> dict[tuple[ProjectId, str | None], tuple[list[Objection], Quotas]]:
    """Return what `hold_project` returns for each of several pairs of a project and a caller, and hold all projects."""
    values = {"projects": [project for project, _ in wanted], "actors": [actor for _, actor in wanted]}
    rows = {(row["project"], row["actor"]): row for row in await _HOLD.rows(conn, values)}
    found = {pair: _limited(*pair, row) for pair, row in rows.items()}
    holders = {each.stream for quotas in found.values() for each in quotas}
    used = await quota_use.used_by(conn, sorted(holders)) if holders else {}
    held = dict[tuple[ProjectId, str | None], tuple[list[Objection], Quotas]]()
    for project, actor in wanted:
        if (row := rows.get((project, actor))) is None:
            held[project, actor] = [unknown_project(project, "/project")], UNLIMITED
            continue
        quotas = Quotas(tuple(each._replace(used=used[each.stream]) for each in found[project, actor]))
        held[project, actor] = against_changing(project, row["archived"], "/project"), quotas
    return held


def _limited(project: ProjectId, actor: str | None, row: Mapping[str, Any]) -> list[Quota]:
    """Return the quotas of a project and a caller that have limits; their use is not read yet."""
    quotas = [
        Quota("project", project, stream_of_project(project), ProjectRow(row).limits, NOTHING_USED),
    ]
    if actor is not None:
        own = limits_in(row["principal_limits"])
        quotas.append(Quota("principal", actor, stream_of_principal(actor), own, NOTHING_USED))
    return [each for each in quotas if has_limits(each.limits)]


async def hold_project_of(conn: AsyncConnection, allocation: AllocationId) -> Quotas:
    """Return the quotas of the project of an allocation, and hold the project like `hold_project`. An allocation that
    does not exist has none.
    """
    stream = stream_of_allocation(allocation)
    query = sa.select(event.c.project).where(event.c.stream_id == stream, event.c.version == 1)
    project = await conn.scalar(query)
    if project is None:
        return UNLIMITED
    _, quotas = await hold_project(conn, ProjectId(project), None)
    return quotas


def ingress_use(rules: Sequence[IngressRequest]) -> QuotaUse:
    """Return the amounts that requested ingress rules count."""
    addresses = sum(isinstance(each.to, AddressRequest) for each in rules)
    return QuotaUse(public_addresses=addresses, public_ports=len(rules) - addresses)
