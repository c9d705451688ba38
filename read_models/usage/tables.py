"""`read.usage_*`: which slots each project used, when, and at which price (PLT-9). The projector writes these tables.

Every row is an insert that follows from one event. A lease begins at the time in `allocation.lease_granted` and ends at
the time at which the database recorded `allocation.lease_ended`: the clocks of nodes have no influence.
"""

from collections.abc import Sequence
from decimal import Decimal
from typing import Final, assert_never

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from events.allocations import (
    AllocationRequested,
    AllocationSpecified,
    LeaseEnded,
    LeaseGranted,
    LeaseRenewed,
)
from events.envelope import Recorded
from events.ledger.tables import metadata
from events.projects import ProjectReservationsSet
from events.slots import SlotClaimed, SlotForceReleased, SlotReleased
from events.values import Position, ProjectId
from read_models.checkpoints import checkpoint

PROJECTION: Final = "usage"
GRANTED, RENEWED, ENDED = "granted", "renewed", "ended"
TIME: Final = sa.DateTime(timezone=True)

usage_request = sa.Table(
    "usage_request",
    metadata,
    sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("allocation_id", sa.Text, nullable=False, unique=True),
    sa.Column("project", sa.Text, nullable=False),
    sa.Column("sku", sa.Text, nullable=False),
    sa.Column("slot_count", sa.Integer, nullable=False),
    sa.Column("labels", JSONB, nullable=False),
    sa.Index("usage_request_by_project", "project", "position"),
    schema="read",
)
usage_price = sa.Table(
    "usage_price",
    metadata,
    sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("allocation_id", sa.Text, nullable=False, unique=True),
    sa.Column("sku_version", sa.Integer, nullable=False),
    sa.Column("price_per_hour", sa.Numeric, nullable=False),
    schema="read",
)
usage_lease = sa.Table(
    "usage_lease",
    metadata,
    sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("allocation_id", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("starts_at", TIME),
    sa.Column("ends_at", TIME, nullable=False),
    sa.Index(
        "usage_lease_of_allocation",
        "allocation_id",
        postgresql_include=["position", "kind", "starts_at", "ends_at"],
    ),
    schema="read",
)
usage_reservation = sa.Table(
    "usage_reservation",
    metadata,
    sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("project", sa.Text, nullable=False),
    sa.Column("reservations", JSONB, nullable=False),
    sa.Column("set_at", TIME, nullable=False),
    sa.Index("usage_reservation_by_project", "project"),
    schema="read",
)
usage_slot = sa.Table(
    "usage_slot",
    metadata,
    sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("project", sa.Text, nullable=False),
    sa.Column("sku", sa.Text, nullable=False),
    sa.Column("change", sa.Integer, nullable=False),
    sa.Column("changed_at", TIME, nullable=False),
    sa.Index("usage_slot_by_project", "project", "sku"),
    schema="read",
)

LeaseChange = LeaseGranted | LeaseRenewed | LeaseEnded
SlotChange = SlotClaimed | SlotReleased | SlotForceReleased
Row = Sequence[object]


def request_rows(recorded: Recorded[AllocationRequested]) -> list[Row]:
    """Return the row of `read.usage_request` that a request adds."""
    fact = recorded.fact
    labels = msgspec.json.encode(fact.labels).decode()
    return [(recorded.position, fact.allocation_id, fact.project, fact.sku, fact.slot_count, labels)]


def redact_requests(project: ProjectId, before: Position | None) -> sa.Update:
    """Build the statement that removes the labels from the usage of a project, or of requests before a position."""
    mine = sa.update(usage_request).where(usage_request.c.project == project).values(labels={})
    return mine if before is None else mine.where(usage_request.c.position < before)


def price_rows(recorded: Recorded[AllocationSpecified]) -> list[Row]:
    """Return the row of `read.usage_price` that a specification adds. An allocation of the first release has none: its
    SKUs had no versions and no prices.
    """
    allocation, sku = recorded.fact.allocation_id, recorded.fact.sku
    return [(recorded.position, allocation, sku.version, Decimal(sku.content.price_per_hour))]


def lease_rows(recorded: Recorded[LeaseChange]) -> list[Row]:
    """Return the row of `read.usage_lease` that a change of a lease adds: its beginning, if the change sets it, and its
    end or the time at which it expires.
    """
    match recorded.fact:
        case LeaseGranted(allocation_id=allocation, granted_at=start, expires_at=end):
            return [(recorded.position, allocation, GRANTED, start, end)]
        case LeaseRenewed(allocation_id=allocation, expires_at=end):
            return [(recorded.position, allocation, RENEWED, None, end)]
        case LeaseEnded(allocation_id=allocation):
            return [(recorded.position, allocation, ENDED, None, recorded.recorded_at)]
        case _:
            assert_never(recorded.fact)


def reservation_rows(recorded: Recorded[ProjectReservationsSet]) -> list[Row]:
    """Return the row of `read.usage_reservation` with all reservations of a project from now on."""
    reservations = msgspec.json.encode(recorded.fact.reservations).decode()
    return [(recorded.position, recorded.fact.project, reservations, recorded.recorded_at)]


def slot_rows(recorded: Recorded[SlotChange]) -> list[Row]:
    """Return the row of `read.usage_slot` that the claim or the end of a claim adds; none for a slot that counts
    towards no project.
    """
    fact = recorded.fact
    if fact.use is None:
        return []
    change = 1 if isinstance(fact, SlotClaimed) else -1
    return [(recorded.position, fact.use.project, fact.use.sku, change, recorded.recorded_at)]


async def known_to(conn: AsyncConnection) -> Position:
    """Return the position up to which the tables have the usage."""
    known = await conn.scalar(sa.select(checkpoint.c.position).where(checkpoint.c.name == PROJECTION))
    return Position(known or 0)
