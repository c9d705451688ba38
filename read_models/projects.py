"""`read.project`: the projects. The table is written in the transaction that appends the project's event to the ledger,
because an allocation may be requested only in a project that is not archived.

`read.project_event` lists the positions of the events of each project. The projector writes it; lists and watches of
one project read it instead of the whole ledger.
"""

from collections.abc import Mapping
from typing import Any, assert_never

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from events.ledger.personal import ERASED
from events.ledger.tables import event, metadata
from events.projects import (
    PersonalDataDestroyed,
    ProjectArchived,
    ProjectCreated,
    ProjectDescribed,
    ProjectFact,
    ProjectLimits,
    ProjectLimitsSet,
    ProjectReservationsSet,
)
from events.values import Position, ProjectId, SkuName
from read_models.pages import keyset
from read_models.rows import Patch

project = sa.Table(
    "project",
    metadata,
    sa.Column("project", sa.Text, primary_key=True),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("description", sa.Text, nullable=False),
    sa.Column("project_network_id", sa.Text),
    sa.Column("archived", sa.Text),
    sa.Column("limits", JSONB(none_as_null=True)),
    sa.Column("reservations", JSONB(none_as_null=True)),
    sa.Index("project_reserving", "project", postgresql_where=sa.text("reservations is not null")),
    schema="read",
)
project_event = sa.Table(
    "project_event",
    metadata,
    sa.Column("project", sa.Text, primary_key=True),
    sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
    schema="read",
)
EVENT_ROWS = (
    sa.select(event.c.project, event.c.position)
    .where(event.c.project.is_not(None))
    .order_by(event.c.project, event.c.position)
)
"""Query for the rows of `read.project_event`, in the order of the table's primary key."""


class ProjectRow:
    """The row of a project in `read.project`; `archived` is the reason why it was archived, None while it is active."""

    def __init__(self, row: Mapping[Any, Any]) -> None:
        self.project = ProjectId(row["project"])
        self.version: int = row["version"]
        self.description: str = row["description"]
        self.project_network_id: str | None = row["project_network_id"]
        self.archived: str | None = row["archived"]
        limits = row["limits"]
        self.limits = ProjectLimits() if limits is None else msgspec.convert(limits, ProjectLimits)
        self.reservations: dict[SkuName, int] = row["reservations"] or {}


def patch(version: int, fact: ProjectFact) -> Patch:
    """Return the patch that a fact applies to the row of its project. `version` is the fact's version in its stream."""
    match fact:
        case ProjectCreated(description=description, project_network_id=network):
            columns = {"version": version, "description": description}
            return Patch(fact.project, columns, {"project_network_id": network})
        case ProjectDescribed(description=description):
            return Patch(fact.project, {"version": version, "description": description})
        case ProjectLimitsSet(limits=limits):
            return Patch(fact.project, {"version": version, "limits": msgspec.to_builtins(limits)})
        case ProjectReservationsSet(reservations=reservations):
            return Patch(fact.project, {"version": version, "reservations": reservations or None})
        case PersonalDataDestroyed(archived=archived):
            columns = {"version": version, "description": ERASED}
            return Patch(fact.project, {**columns, "archived": ERASED} if archived else columns)
        case ProjectArchived(reason=reason):
            return Patch(fact.project, {"version": version, "archived": reason})
        case _:
            assert_never(fact)


def created(fact: ProjectCreated) -> ProjectRow:
    """Return the row that is added when a project is created."""
    made = patch(1, fact)
    return ProjectRow(
        {
            "project": fact.project,
            "archived": None,
            "limits": None,
            "reservations": None,
            **made.columns,
            **(made.born or {}),
        }
    )


async def find(conn: AsyncConnection, name: ProjectId, *, lock: str | None = None) -> ProjectRow | None:
    """Return the row of the project with this id, or None if there is no such project.

    With `lock` the row is locked until the transaction ends: `share` prevents other transactions from changing the
    project, `update` also from creating allocations in it.
    """
    query = sa.select(project).where(project.c.project == name)
    if lock is not None:
        query = query.with_for_update(read=lock == "share")
    row = (await conn.execute(query)).mappings().one_or_none()
    return None if row is None else ProjectRow(row)


def all_reservations() -> sa.ScalarSelect[Any]:
    """Return the subquery for the reservations of all projects: an object with those of each project, or null."""
    other = project.alias("reserving")
    return (
        sa.select(sa.func.jsonb_object_agg(other.c.project, other.c.reservations))
        .where(other.c.reservations.is_not(None), other.c.archived.is_(None))
        .scalar_subquery()
    )


async def reserved(conn: AsyncConnection) -> dict[ProjectId, dict[SkuName, int]]:
    """Return the reservations of each project that has any: numbers of slots by SKU."""
    return await conn.scalar(sa.select(all_reservations())) or {}


async def page(
    conn: AsyncConnection,
    *,
    within: frozenset[ProjectId] | None,
    after: str | None,
    limit: int,
    descending: bool = False,
    archived: bool | None = None,
) -> list[ProjectRow]:
    """Return one page of projects, ordered by id; only the projects in `within`, unless it is None. `archived`: only
    archived projects if true, only active ones if false, both if None.
    """
    query = sa.select(project)
    if within is not None:
        query = query.where(project.c.project.in_(sorted(within)))
    if archived is not None:
        query = query.where(project.c.archived.is_not(None) if archived else project.c.archived.is_(None))
    place = None if after is None else (after,)
    query = keyset(query, [project.c.project], place, limit, descending=descending)
    return [ProjectRow(row) for row in (await conn.execute(query)).mappings()]


async def positions(
    conn: AsyncConnection,
    names: frozenset[ProjectId],
    *,
    after: Position,
    upto: Position,
    limit: int,
    descending: bool = False,
) -> list[Position]:
    """Return the positions of the next events of these projects after one position and up to another, in order; with
    `descending`, return the positions of the last events in this range, newest first.
    """
    of_each = [
        sa.select(project_event.c.position)
        .where(
            project_event.c.project == name,
            project_event.c.position > after,
            project_event.c.position <= upto,
        )
        .order_by(project_event.c.position.desc() if descending else project_event.c.position)
        .limit(limit)
        .subquery()
        for name in sorted(names)
    ]
    if not of_each:
        return []
    found = sa.union_all(*(sa.select(each.c.position) for each in of_each)).subquery()
    order = found.c.position.desc() if descending else found.c.position
    query = sa.select(found.c.position).order_by(order).limit(limit)
    return [Position(each) for each in await conn.scalars(query)]
