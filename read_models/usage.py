"""`read.usage_*`: which slots each project used, when, and at which price (PLT-9). The projector writes these tables.

Every row is an insert that follows from one event. The usage of an allocation is the interval of its lease, which a
query puts together from the rows of the allocation: from the start of the lease to its recorded end, but not beyond the
time at which it expires. So a lease that is ended late, because the control plane was not running, is not metered
longer than it was granted. The beginning is the time in `allocation.lease_granted`, and the end is the time at which
the database recorded `allocation.lease_ended`: the clocks of nodes have no influence.

Amounts are sums of exact decimal numbers; `usage_pieces.amount_of` rounds.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple, assert_never

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, array
from sqlalchemy.ext.asyncio import AsyncConnection

from events.allocations import (
    AllocationRequested,
    AllocationSpecified,
    LeaseEnded,
    LeaseGranted,
    LeaseRenewed,
)
from events.envelope import Recorded
from events.ledger.tables import event, metadata
from events.values import AllocationId, Position, ProjectId, SkuName
from read_models.checkpoints import checkpoint
from read_models.pages import keyset
from read_models.usage_pieces import Amount, EntryKind, Piece, amount_of

PROJECTION: Final = "usage"
_GRANTED, _RENEWED, _ENDED = "granted", "renewed", "ended"
_TIME: Final = sa.DateTime(timezone=True)

usage_request = sa.Table(
    "usage_request",
    metadata,
    sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("allocation_id", sa.Text, nullable=False, unique=True),
    sa.Column("project", sa.Text, nullable=False),
    sa.Column("sku", sa.Text, nullable=False),
    sa.Column("slot_count", sa.Integer, nullable=False),
    sa.Column("labels", JSONB, nullable=False),
    sa.Index("usage_request_by_project", "project"),
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
    sa.Column("starts_at", _TIME),
    sa.Column("ends_at", _TIME, nullable=False),
    sa.Index("usage_lease_of_allocation", "allocation_id"),
    schema="read",
)

LeaseChange = LeaseGranted | LeaseRenewed | LeaseEnded
Row = Sequence[object]


def request_rows(recorded: Recorded[AllocationRequested]) -> list[Row]:
    """Return the row of `read.usage_request` that a request adds."""
    fact = recorded.fact
    labels = msgspec.json.encode(fact.labels).decode()
    return [(recorded.position, fact.allocation_id, fact.project, fact.sku, fact.slot_count, labels)]


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
            return [(recorded.position, allocation, _GRANTED, start, end)]
        case LeaseRenewed(allocation_id=allocation, expires_at=end):
            return [(recorded.position, allocation, _RENEWED, None, end)]
        case LeaseEnded(allocation_id=allocation):
            return [(recorded.position, allocation, _ENDED, None, recorded.recorded_at)]
        case _:
            assert_never(recorded.fact)


class UsageFilter(NamedTuple):
    """Which usage a query returns: that of these projects, this SKU and this label; None: of all."""

    within: frozenset[ProjectId] | None = None
    sku: SkuName | None = None
    label: tuple[str, str] | None = None


class Grouping(NamedTuple):
    """What usage is grouped by: `project`, `sku`, or the value of a label."""

    field: str
    label: str | None = None


class Total(NamedTuple):
    """The usage of a group. `key` is None for allocations without the label that usage is grouped by."""

    key: str | None
    amount: Amount
    entries: int


class Source(NamedTuple):
    """An event from which an entry follows."""

    position: Position
    event_id: str
    type: str


class Place(NamedTuple):
    """The place of an entry in the list: the position of its allocation's request, and the number of its piece."""

    request: Position
    piece: int


class Entry(NamedTuple):
    """The usage of one allocation in one piece of the range. `running` is whether the lease had not ended yet."""

    place: Place
    kind: EntryKind
    allocation_id: AllocationId
    project: ProjectId
    sku: SkuName
    sku_version: int
    price_per_hour: Decimal
    slot_count: int
    labels: dict[str, str]
    starts_at: datetime
    ends_at: datetime
    running: bool
    amount: Amount
    events: tuple[Source, ...]


async def totals(
    conn: AsyncConnection, which: UsageFilter, pieces: Sequence[Piece], grouping: Grouping | None
) -> list[Total]:
    """Return the usage of each group, ordered by key; without a grouping, that of all as one group, if there is any."""
    if not pieces:
        return []
    found = _entries(which, pieces)
    key = _key(found, grouping)
    query = sa.select(
        key.label("key"),
        sa.func.sum(found.c.slot_seconds).label("slot_seconds"),
        sa.func.sum(found.c.slot_seconds * found.c.price_per_hour).label("weighted"),
        sa.func.count().label("entries"),
    )
    rows = await conn.execute(query.group_by(sa.literal_column("1")).order_by(sa.literal_column("1")))
    return [Total(row.key, amount_of(row.slot_seconds, row.weighted), row.entries) for row in rows]


async def entries(
    conn: AsyncConnection,
    which: UsageFilter,
    pieces: Sequence[Piece],
    *,
    after: Place | None,
    limit: int,
    descending: bool = False,
) -> list[Entry]:
    """Return one page of the entries that the totals of `pieces` are the sums of, in the order of the allocations'
    requests, each with its events.
    """
    if not pieces:
        return []
    found = _entries(which, pieces)
    query = keyset(sa.select(found), [found.c.request, found.c.piece], after, limit, descending=descending)
    rows = (await conn.execute(query)).all()
    sources = await _sources(conn, {position for row in rows for position in row.positions})
    return [_entry(row, sources) for row in rows]


async def known_to(conn: AsyncConnection) -> Position:
    """Return the position up to which the tables have the usage."""
    known = await conn.scalar(sa.select(checkpoint.c.position).where(checkpoint.c.name == PROJECTION))
    return Position(known or 0)


def _intervals(which: UsageFilter) -> sa.Subquery:
    """Return the query for the interval of each lease, with the positions of its events."""
    lease = usage_lease.c
    expires = sa.func.max(lease.ends_at).filter(lease.kind != _ENDED)
    ended = sa.func.min(lease.ends_at).filter(lease.kind == _ENDED)
    query = sa.select(
        lease.allocation_id,
        sa.func.max(lease.starts_at).label("starts_at"),
        sa.func.least(expires, ended).label("ends_at"),
        ended.is_(None).label("running"),
        sa.func.array_agg(lease.position, type_=ARRAY(sa.BigInteger)).label("positions"),
    ).group_by(lease.allocation_id)
    if any(each is not None for each in which):
        request = sa.select(usage_request.c.allocation_id).where(*_matches(which))
        query = query.where(lease.allocation_id.in_(request))
    return query.subquery("interval")


def _matches(which: UsageFilter) -> Iterable[sa.ColumnElement[bool]]:
    request = usage_request.c
    if which.within is not None:
        yield request.project.in_(sorted(which.within))
    if which.sku is not None:
        yield request.sku == which.sku
    if which.label is not None:
        yield request.labels.contains(dict([which.label]))


def _entries(which: UsageFilter, pieces: Sequence[Piece]) -> sa.Subquery:
    """Return the query for the entries of all pieces."""
    found = [_of_piece(which, number, piece) for number, piece in enumerate(pieces)]
    return sa.union_all(*found).subquery("entry")


def _of_piece(which: UsageFilter, number: int, piece: Piece) -> sa.Select[Any]:
    interval, request, price = _intervals(which), usage_request.c, usage_price.c
    # Both functions ignore a null.
    starts_at = sa.func.greatest(interval.c.starts_at, sa.literal(piece.starts_at, _TIME))
    ends_at = sa.func.least(interval.c.ends_at, sa.literal(piece.ends_at, _TIME))
    duration = sa.cast(sa.extract("epoch", ends_at - starts_at), sa.Numeric)
    prices = sa.outerjoin(usage_request, usage_price, price.allocation_id == request.allocation_id)
    own = sa.func.array_remove(array([request.position, price.position]), None)
    return (
        sa.select(
            request.position.label("request"),
            sa.literal(number).label("piece"),
            sa.literal(piece.kind.value).label("kind"),
            request.allocation_id,
            request.project,
            request.sku,
            sa.func.coalesce(price.sku_version, 0).label("sku_version"),
            sa.func.coalesce(price.price_per_hour, 0).label("price_per_hour"),
            request.slot_count,
            request.labels,
            starts_at.label("starts_at"),
            ends_at.label("ends_at"),
            interval.c.running,
            sa.func.array_cat(own, interval.c.positions).label("positions"),
            (duration * request.slot_count).label("slot_seconds"),
        )
        .select_from(sa.join(interval, prices, interval.c.allocation_id == request.allocation_id))
        .where(starts_at < ends_at)
    )


def _key(found: sa.Subquery, grouping: Grouping | None) -> sa.ColumnElement[Any]:
    if grouping is None:
        return sa.null()
    return found.c[grouping.field] if grouping.label is None else found.c.labels[grouping.label].as_string()


async def _sources(conn: AsyncConnection, positions: set[int]) -> dict[int, Source]:
    query = sa.select(event.c.position, event.c.event_id, event.c.type).where(
        event.c.position == sa.any_(sa.cast([*positions], ARRAY(sa.BigInteger)))
    )
    return {
        row.position: Source(Position(row.position), str(row.event_id), row.type)
        for row in await conn.execute(query)
    }


def _entry(row: Any, sources: dict[int, Source]) -> Entry:
    return Entry(
        Place(Position(row.request), row.piece),
        EntryKind(row.kind),
        AllocationId(row.allocation_id),
        ProjectId(row.project),
        SkuName(row.sku),
        row.sku_version,
        row.price_per_hour,
        row.slot_count,
        row.labels,
        row.starts_at,
        row.ends_at,
        row.running,
        amount_of(row.slot_seconds, row.slot_seconds * row.price_per_hour),
        tuple(sources[each] for each in sorted(row.positions)),
    )
