"""`read.waiting`: the requests that wait for capacity, in their order. The table is written in the transaction that
appends the events to the ledger, because a new request must not take the capacity of those that wait already.

A row stays when the wait has ended, without `is_waiting`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, assert_never

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from events.allocations import AllocationDequeued, AllocationQueued
from events.derived.waiting import Place
from events.ledger.tables import metadata
from events.values import AllocationId
from read_models.rows import Patch

waiting = sa.Table(
    "waiting",
    metadata,
    sa.Column("allocation_id", sa.Text, primary_key=True),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("project", sa.Text, nullable=False),
    sa.Column("priority", sa.Integer, nullable=False),
    sa.Column("queued_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("waits_until", sa.DateTime(timezone=True), nullable=False),
    sa.Column("is_waiting", sa.Boolean, nullable=False),
    sa.Index(
        "waiting_in_order",
        sa.text("priority desc"),
        "queued_at",
        "allocation_id",
        postgresql_where=sa.text("is_waiting"),
    ),
    schema="read",
)
_ORDER: Final = (waiting.c.priority.desc(), waiting.c.queued_at, waiting.c.allocation_id)


def patch(version: int, fact: AllocationQueued | AllocationDequeued) -> Patch:
    """Return the patch that a fact applies to the row of its request."""
    match fact:
        case AllocationQueued():
            born = {
                "project": fact.project,
                "priority": fact.priority,
                "queued_at": fact.queued_at,
                "waits_until": fact.waits_until,
            }
            return Patch(fact.allocation_id, {"version": version, "is_waiting": True}, born)
        case AllocationDequeued():
            return Patch(fact.allocation_id, {"version": version, "is_waiting": False})
        case _:
            assert_never(fact)


def any_waiting() -> sa.ColumnElement[bool]:
    """Return the SQL condition that at least one request waits."""
    return sa.exists().select_from(waiting).where(waiting.c.is_waiting)


async def in_order(conn: AsyncConnection, limit: int, before: Place | None = None) -> list[Place]:
    """Return the first waiting requests in their order; with `before`, only those that are ahead of this place."""
    query = sa.select(waiting).where(waiting.c.is_waiting).order_by(*_ORDER).limit(limit)
    if before is not None:
        query = query.where(_is_ahead_of(before))
    return [_place(row) for row in (await conn.execute(query)).mappings()]


async def positions(conn: AsyncConnection, names: Sequence[AllocationId]) -> dict[AllocationId, int]:
    """Return the positions of those of these requests that wait, counted from 1 for the first of all."""
    number = sa.func.row_number().over(order_by=_ORDER).label("number")
    each = sa.select(waiting.c.allocation_id, number).where(waiting.c.is_waiting).subquery()
    query = sa.select(each).where(each.c.allocation_id.in_(names))
    return {AllocationId(row.allocation_id): row.number for row in await conn.execute(query)}


def _is_ahead_of(place: Place) -> sa.ColumnElement[bool]:
    later = sa.tuple_(waiting.c.queued_at, waiting.c.allocation_id) < sa.tuple_(
        sa.literal(place.queued_at, sa.DateTime(timezone=True)), sa.literal(place.allocation_id)
    )
    same = sa.and_(waiting.c.priority == place.priority, later)
    return sa.or_(waiting.c.priority > place.priority, same)


def _place(row: Mapping[Any, Any]) -> Place:
    return Place(row["priority"], row["queued_at"], AllocationId(row["allocation_id"]))
