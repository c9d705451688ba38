"""`read.allocation` lists allocations, `read.allocation_label` their labels, and `read.story` the events that belong to
each allocation. The projector writes these tables.

The state of an allocation is computed from the events of its own stream; these tables only index the streams and
events.
"""

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import UUID
from sqlalchemy.ext.asyncio import AsyncConnection

from events.allocations import AllocationRequested
from events.envelope import Recorded
from events.ledger.tables import event, metadata
from events.values import AllocationId, Position, ProjectId, correlation_of, stream_of_allocation
from read_models.pages import keyset

allocation = sa.Table(
    "allocation",
    metadata,
    sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("allocation_id", sa.Text, nullable=False, unique=True),
    sa.Column("project", sa.Text, nullable=False),
    sa.Index("allocation_by_project", "project", "position"),
    schema="read",
)
allocation_label = sa.Table(
    "allocation_label",
    metadata,
    sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("label", sa.Text, primary_key=True),
    sa.Column("project", sa.Text, nullable=False),
    sa.Index("allocation_label_in_project", "project", "label", "position"),
    sa.Index("allocation_label_in_all", "label", "position"),
    schema="read",
)
story = sa.Table(
    "story",
    metadata,
    sa.Column("correlation_id", UUID(as_uuid=True), primary_key=True),
    sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
    schema="read",
)

TIMELINE_ROWS: Final = (
    sa.select(event.c.correlation_id, event.c.position)
    .where(event.c.stream_id.not_like("allocation-%"))
    .order_by(event.c.correlation_id, event.c.position)
)
"""Query for the rows of `read.story`, in the order of the table's primary key: in this order the index is filled
faster."""


def request(recorded: Recorded[AllocationRequested]) -> list[tuple[Position, AllocationId, str]]:
    """Return the row that the event of an allocation request adds to `read.allocation`."""
    return [(recorded.position, recorded.fact.allocation_id, recorded.fact.project)]


def labels(recorded: Recorded[AllocationRequested]) -> list[tuple[Position, str, str]]:
    """Return the rows that the event of an allocation request adds to `read.allocation_label`: one for each label, in
    the form `name=value`. Two labels can have the same form, because a name may contain `=`.
    """
    fact = recorded.fact
    found = dict.fromkeys(f"{name}={value}" for name, value in fact.labels.items())
    return [(recorded.position, each, fact.project) for each in found]


def redact_labels(project: ProjectId, before: Position | None) -> sa.Delete:
    """Build the statement that deletes the labels of a project, or those of requests before a position."""
    mine = sa.delete(allocation_label).where(allocation_label.c.project == project)
    return mine if before is None else mine.where(allocation_label.c.position < before)


class Requested(NamedTuple):
    """An allocation request: the id of the allocation, and the ledger position of the request."""

    position: Position
    allocation_id: AllocationId


async def page(
    conn: AsyncConnection,
    *,
    within: frozenset[ProjectId] | None,
    labelled: Sequence[str],
    after: Position | None,
    limit: int,
    descending: bool = True,
    upto: Position | None = None,
    among: Collection[Position] | None = None,
) -> list[Requested]:
    """Return one page of the allocation requests that have all labels of `labelled`, each in the form `name=value`;
    newest first or oldest first. With `within`, only those in these projects, with `upto` only those that were recorded
    up to this position, and with `among` only those at these positions.
    """
    query, position = sa.select(allocation), allocation.c.position
    if within is not None:
        query = query.where(allocation.c.project.in_(sorted(within)))
    for label in labelled:
        given = allocation_label.alias()
        query = query.join(given, given.c.position == allocation.c.position)
        query = query.where(given.c.label == label)
        if within is not None:
            query = query.where(given.c.project.in_(sorted(within)))
        # The order of the label's index: all rows of a page are found in it one after the other.
        position = given.c.position
    if upto is not None:
        query = query.where(position <= upto)
    if among is not None:
        query = query.where(allocation.c.position.in_(among))
    place = None if after is None else (after,)
    query = keyset(query, [position], place, limit, descending=descending)
    return [
        Requested(Position(row.position), AllocationId(row.allocation_id))
        for row in await conn.execute(query)
    ]


async def with_ids(
    conn: AsyncConnection, first: str, last: str, end: str, *, compared: int, limit: int
) -> list[Position]:
    """Return the positions of the newest requests of allocations with ids from `first` to `last` that end with `end`.
    Only the newest `compared` ids of the range are compared with `end`.
    """
    name = allocation.c.allocation_id
    newest = (
        sa.select(allocation)
        .where(name.between(first, last))
        .order_by(name.desc())
        .limit(compared)
        .subquery()
    )
    ended = sa.select(newest.c.position).where(sa.func.right(newest.c.allocation_id, len(end)) == end)
    query = ended.order_by(newest.c.allocation_id.desc()).limit(limit)
    return [Position(each) for each in await conn.scalars(query)]


async def positions(
    conn: AsyncConnection,
    allocation_id: AllocationId,
    *,
    after: Position,
    upto: Position,
    limit: int,
    descending: bool = False,
) -> list[Position]:
    """Return the positions of the next events of an allocation's timeline after one position and up to another, in
    order; with `descending`, return the positions of the last events in this range, newest first.
    """
    # Versions and positions of a stream ascend together; its index is by version.
    own = event.c.stream_id == stream_of_allocation(allocation_id)
    others = story.c.correlation_id == correlation_of(allocation_id)
    of_each = [
        sa.select(each.position)
        .where(which, each.position > after, each.position <= upto)
        .order_by(order.desc() if descending else order)
        .limit(limit)
        .subquery()
        for each, which, order in (
            (story.c, others, story.c.position),
            (event.c, own, event.c.version),
        )
    ]
    found = sa.union_all(*(sa.select(each.c.position) for each in of_each)).subquery()
    order = found.c.position.desc() if descending else found.c.position
    return [
        Position(each)
        for each in await conn.scalars(sa.select(found.c.position).order_by(order).limit(limit))
    ]
