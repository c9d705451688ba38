"""Totals and entries of usage, each entry with the events that it follows from.

Amounts are sums of exact decimal numbers; `amounts.amount_of` rounds. An entry of a billing period has an id. A
reversal and a re-entry name the entry that they correct: the newest earlier entry for the use of the same allocation in
the same billing period.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from events.ledger.tables import event
from events.values import AllocationId, Position, ProjectId, SkuName
from read_models.pages import keyset
from read_models.usage.amounts import Amount, EntryKind, amount_of
from read_models.usage.corrected import LeaseRow, entered_in
from read_models.usage.intervals import UsageFilter, entries_of
from read_models.usage.periods import Bill, Period, closed_before
from read_models.usage.tables import usage_lease

_CHUNK: Final = 500
"""Maximum number of entries that `stream` has in memory at a time."""


class Grouping(NamedTuple):
    """The property by which usage is grouped. `field` is `project`, `sku` or `label`. For `label`, usage is grouped by
    the value of the label with the name `label`.
    """

    field: str
    label: str | None = None


class Total(NamedTuple):
    """The usage of a group and its number of entries. `key` is the project, SKU or label value of the group; None for
    allocations without the label, and for usage that is not grouped.
    """

    key: str | None
    amount: Amount
    entries: int


class Source(NamedTuple):
    """An event from which an entry follows."""

    position: Position
    event_id: str
    type: str


class Place(NamedTuple):
    """The place of an entry in the list. `request` is the position of the event that requested its allocation, and
    `piece` distinguishes the entries of one allocation (`intervals.entries_of`).
    """

    request: Position
    piece: int


class Entry(NamedTuple):
    """The usage of one allocation in a range of time or a billing period. `running` is True if the lease has not ended
    yet.

    The amount of a reversal is negative. `id` and `billing_period`, the name of the period that bills the entry, are
    None for a range of time. `service_period` is the name of the billing period in which the slots were used.
    `corrects` is the id of the earlier entry that a reversal cancels and that a re-entry replaces; None if the entry
    corrects no earlier one.
    """

    place: Place
    kind: EntryKind
    id: str | None
    billing_period: str | None
    service_period: str | None
    corrects: str | None
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
    conn: AsyncConnection, which: UsageFilter, bill: Bill, grouping: Grouping | None
) -> list[Total]:
    """Return the usage of each group, ordered by key. Without a grouping, return all usage as one group; if there is no
    usage, return an empty list.
    """
    found = entries_of(which, bill)
    key = _key(found, grouping)
    query = sa.select(key.label("key"), *_sums(found))
    rows = await conn.execute(query.group_by(sa.literal_column("1")).order_by(sa.literal_column("1")))
    return [Total(row.key, amount_of(row.slot_seconds, row.weighted), row.entries) for row in rows]


async def totals_by_kind(conn: AsyncConnection, which: UsageFilter, bill: Bill) -> dict[bool, Total]:
    """Return the total of the metered entries of a bill under the key False, and that of its corrections (reversals and
    re-entries) under the key True. A key without entries is missing.
    """
    found = entries_of(which, bill)
    is_correction = found.c.kind != EntryKind.METERED.value
    query = sa.select(is_correction.label("key"), *_sums(found)).group_by(is_correction)
    rows = await conn.execute(query)
    return {row.key: Total(None, amount_of(row.slot_seconds, row.weighted), row.entries) for row in rows}


async def entries(
    conn: AsyncConnection,
    which: UsageFilter,
    bill: Bill,
    *,
    after: Place | None,
    limit: int,
    descending: bool = False,
) -> list[Entry]:
    """Return one page of the entries of a bill, each with the events from which it follows, in the order in which the
    allocations were requested. `after` is the place of the last entry of the previous page.

    The totals of a bill are the sums of its entries.
    """
    found = entries_of(which, bill)
    query = keyset(sa.select(found), [found.c.request, found.c.piece], after, limit, descending=descending)
    return await _read(conn, bill, (await conn.execute(query)).all())


async def stream(conn: AsyncConnection, which: UsageFilter, bill: Bill) -> AsyncIterator[list[Entry]]:
    """Yield all entries of a bill in lists of at most `_CHUNK` entries, in the order of `entries`. `conn` must be in a
    transaction with the isolation level repeatable read.
    """
    found = entries_of(which, bill)
    query = sa.select(found).order_by(found.c.request, found.c.piece)
    async with conn.stream(query, execution_options={"yield_per": _CHUNK}) as rows:
        async for part in rows.partitions():
            yield await _read(conn, bill, part)


def _sums(found: sa.Subquery) -> Iterable[sa.ColumnElement[Any]]:
    yield sa.func.sum(found.c.slot_seconds).label("slot_seconds")
    yield sa.func.sum(found.c.slot_seconds * found.c.price_per_hour).label("weighted")
    yield sa.func.count().label("entries")


def _key(found: sa.Subquery, grouping: Grouping | None) -> sa.ColumnElement[Any]:
    if grouping is None:
        return sa.null()
    return found.c[grouping.field] if grouping.label is None else found.c.labels[grouping.label].as_string()


async def _read(conn: AsyncConnection, bill: Bill, rows: Sequence[Any]) -> list[Entry]:
    sources = await _sources(conn, {position for row in rows for position in row.positions})
    corrected = await _corrected(conn, bill, [row for row in rows if row.kind != EntryKind.METERED])
    return [_entry(row, bill, sources, corrected) for row in rows]


async def _sources(conn: AsyncConnection, positions: set[int]) -> dict[int, Source]:
    query = sa.select(event.c.position, event.c.event_id, event.c.type).where(
        event.c.position == sa.any_(sa.cast([*positions], ARRAY(sa.BigInteger)))
    )
    return {
        row.position: Source(Position(row.position), str(row.event_id), row.type)
        for row in await conn.execute(query)
    }


async def _corrected(
    conn: AsyncConnection, bill: Bill, corrections: Sequence[Any]
) -> dict[tuple[str, str], Period]:
    """Return, for each correction of a bill (a reversal or a re-entry), the billing period that billed the entry that
    it corrects: the newest earlier entry for the use of the same allocation in the same billing period.

    The keys are the id of the allocation and the name of the billing period in which the slots were used. The key of a
    correction without an earlier entry is missing.
    """
    if not corrections or bill.corrections is None:
        return {}
    names = {row.allocation_id for row in corrections}
    query = sa.select(usage_lease).where(
        usage_lease.c.allocation_id == sa.any_(sa.cast([*names], ARRAY(sa.Text))),
        usage_lease.c.position <= bill.corrections.since,
    )
    leases = defaultdict[str, list[LeaseRow]](list)
    for row in await conn.execute(query):
        leases[row.allocation_id].append(LeaseRow(row.position, row.kind, row.starts_at, row.ends_at))
    closed = await closed_before(conn, bill.corrections.before)
    numbers = {each.name: number for number, each in enumerate(closed)}
    found: dict[tuple[str, str], Period] = {}
    for row in corrections:
        [service, *later] = closed[numbers[row.service_period] :]
        newest = entered_in(leases[row.allocation_id], service, later)
        if newest is not None:
            found[row.allocation_id, row.service_period] = newest
    return found


def entry_id(billing: str, service: str, allocation: str, kind: EntryKind) -> str:
    """Return the id of an entry, which consists of the name of the billing period that bills the entry (`billing`), the
    name of the billing period in which the slots were used (`service`), the allocation and the kind.
    """
    return f"{billing}/{service}/{allocation}/{kind}"


def _entry(
    row: Any, bill: Bill, sources: dict[int, Source], corrected: dict[tuple[str, str], Period]
) -> Entry:
    kind, allocation = EntryKind(row.kind), AllocationId(row.allocation_id)
    service: str | None = row.service_period or bill.period
    own_id, replaced = None, None
    if bill.period is not None and service is not None:
        own_id = entry_id(bill.period, service, allocation, kind)
    if service is not None and (newest := corrected.get((allocation, service))) is not None:
        first = EntryKind.METERED if newest.name == service else EntryKind.RE_ENTRY
        replaced = entry_id(newest.name, service, allocation, first)
    return Entry(
        Place(Position(row.request), row.piece),
        kind,
        own_id,
        bill.period,
        service,
        replaced,
        allocation,
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
