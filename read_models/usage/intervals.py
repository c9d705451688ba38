"""Queries for usage entries: the intervals of leases, cut to a range of time or to billing periods.

The usage of an allocation is the interval of its lease: from the start of the lease to its recorded end, but not beyond
the time at which it expires. So a lease that is ended late, because the control plane was not running, is not metered
longer than it was granted. Every row has the position of its event, so that the rows up to a position give the
intervals as they were known then. A correction is the difference between two such positions.

Each request is joined with the few rows of its own lease, in the order of the requests: a page of entries reads little
more than its own rows, and the usage of one project nothing of the other projects.
"""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, array

from events.values import Position, ProjectId, SkuName
from read_models.usage.amounts import EntryKind
from read_models.usage.periods import Bill, Corrections, Piece, billing_period
from read_models.usage.tables import ENDED, TIME, usage_lease, usage_price, usage_request

_METERED_PIECE: Final = 0
_OF_REQUEST: Final = ("request", "allocation_id", "project", "sku", "slot_count", "labels")
"""Columns that every subquery of this module takes from the request."""


class UsageFilter(NamedTuple):
    """Filter for usage by projects, SKU and label. A field that is None matches all usage."""

    within: frozenset[ProjectId] | None = None
    sku: SkuName | None = None
    label: tuple[str, str] | None = None


def entries_of(which: UsageFilter, bill: Bill) -> sa.Subquery:
    """Return the query for the entries of a bill. The column `piece` distinguishes the entries of one allocation: 0 is
    metered usage, and each closed period has a number for its reversals and one for its re-entries.
    """
    found = [_metered(which, bill.piece)]
    if bill.corrections is not None:
        changed = _changes(which, bill.corrections).cte("changed")
        found += [_reversals(changed), _re_entries(changed)]
    return sa.union_all(*found).subquery("entry")


def _metered(which: UsageFilter, piece: Piece) -> sa.Select[Any]:
    interval = _intervals(which, piece.known_to).subquery("interval")
    # Both functions ignore a null.
    starts_at = sa.func.greatest(interval.c.starts_at, sa.literal(piece.starts_at, TIME))
    ends_at = sa.func.least(interval.c.ends_at, sa.literal(piece.ends_at, TIME))
    cut = sa.select(
        *_of_request(interval),
        starts_at.label("starts_at"),
        ends_at.label("ends_at"),
        interval.c.running,
        interval.c.positions,
        sa.literal(_METERED_PIECE).label("piece"),
        sa.null().cast(sa.Text).label("service_period"),
    ).where(starts_at < ends_at)
    return _entries(cut.subquery("cut"), EntryKind.METERED)


def _reversals(changed: sa.CTE) -> sa.Select[Any]:
    cut = sa.select(
        *_of_request(changed),
        changed.c.before_start.label("starts_at"),
        changed.c.before_end.label("ends_at"),
        changed.c.running,
        changed.c.positions,
        (2 * changed.c.number - 1).label("piece"),
        changed.c.service_period,
    ).where(changed.c.before_start.is_not(None))
    return _entries(cut.subquery("reversed"), EntryKind.REVERSAL)


def _re_entries(changed: sa.CTE) -> sa.Select[Any]:
    cut = sa.select(
        *_of_request(changed),
        changed.c.after_start.label("starts_at"),
        changed.c.after_end.label("ends_at"),
        changed.c.running,
        changed.c.positions,
        (2 * changed.c.number).label("piece"),
        changed.c.service_period,
    ).where(changed.c.after_start.is_not(None))
    return _entries(cut.subquery("entered"), EntryKind.RE_ENTRY)


def _changes(which: UsageFilter, corrections: Corrections) -> sa.Select[Any]:
    """Return the query for the intervals of usage within closed periods that later events changed: each interval before
    and after these events. Both times are null for an interval that has no usage in the period.
    """
    position, known_to = usage_lease.c.position, corrections.known_to
    later = sa.select(usage_lease.c.allocation_id).where(position > corrections.since)
    if known_to is not None:
        later = later.where(position <= known_to)
    is_changed = usage_request.c.allocation_id.in_(later)
    before = _intervals(which, corrections.since).where(is_changed).subquery("interval_before")
    after = _intervals(which, known_to).where(is_changed).subquery("interval_after")
    period = billing_period.c
    both = sa.outerjoin(after, before, after.c.allocation_id == before.c.allocation_id)
    cut = (
        sa.select(
            *_of_request(after),
            after.c.running,
            after.c.positions,
            period.number,
            period.name.label("service_period"),
            *_cut_to_period(before, "before"),
            *_cut_to_period(after, "after"),
        )
        .select_from(sa.join(both, billing_period, period.number < corrections.before))
        .subquery("cut_to_periods")
    )
    changed = sa.or_(
        cut.c.before_start.is_distinct_from(cut.c.after_start),
        cut.c.before_end.is_distinct_from(cut.c.after_end),
    )
    return sa.select(cut).where(changed)


def _cut_to_period(interval: sa.Subquery, prefix: str) -> Iterable[sa.ColumnElement[Any]]:
    period = billing_period.c
    starts_at = sa.func.greatest(interval.c.starts_at, period.starts_at)
    ends_at = sa.func.least(interval.c.ends_at, period.ends_at)
    # `greatest` ignores a null: an allocation without a lease has no usage in the period.
    used = sa.and_(interval.c.starts_at.is_not(None), starts_at < ends_at)
    yield sa.case((used, starts_at)).label(f"{prefix}_start")
    yield sa.case((used, ends_at)).label(f"{prefix}_end")


def _intervals(which: UsageFilter, known_to: Position | None) -> sa.Select[Any]:
    """Return the query for the interval of each lease, according to the events up to the position `known_to`, with the
    positions of these events. `which` selects the leases.
    """
    lease, request = usage_lease.c, usage_request.c
    expires = sa.func.max(lease.ends_at).filter(lease.kind != ENDED)
    ended = sa.func.min(lease.ends_at).filter(lease.kind == ENDED)
    own = sa.select(
        sa.func.max(lease.starts_at).label("starts_at"),
        sa.func.least(expires, ended).label("ends_at"),
        ended.is_(None).label("running"),
        sa.func.array_agg(lease.position, type_=ARRAY(sa.BigInteger)).label("positions"),
    ).where(lease.allocation_id == request.allocation_id)
    if known_to is not None:
        own = own.where(lease.position <= known_to)
    # An allocation without a lease has no interval.
    found = own.having(sa.func.count() > 0).lateral("lease")
    return (
        sa.select(
            request.position.label("request"),
            request.allocation_id,
            request.project,
            request.sku,
            request.slot_count,
            request.labels,
            found.c.starts_at,
            found.c.ends_at,
            found.c.running,
            found.c.positions,
        )
        .select_from(sa.join(usage_request, found, sa.true()))
        .where(*_matches(which))
    )


def _of_request(found: sa.Subquery | sa.CTE) -> Iterable[sa.ColumnElement[Any]]:
    return (found.c[name] for name in _OF_REQUEST)


def _matches(which: UsageFilter) -> Iterable[sa.ColumnElement[bool]]:
    request = usage_request.c
    if which.within is not None:
        yield request.project.in_(sorted(which.within))
    if which.sku is not None:
        yield request.sku == which.sku
    if which.label is not None:
        yield request.labels.contains(dict([which.label]))


def _entries(cut: sa.Subquery, kind: EntryKind) -> sa.Select[Any]:
    """Return the query for the entries of the intervals in `cut`. The amounts of reversals are negative."""
    price = usage_price.c
    duration = sa.cast(sa.extract("epoch", cut.c.ends_at - cut.c.starts_at), sa.Numeric)
    sign = -1 if kind is EntryKind.REVERSAL else 1
    own = sa.func.array_remove(array([cut.c.request, price.position]), None)
    return sa.select(
        cut.c.request,
        cut.c.piece,
        sa.literal(kind.value).label("kind"),
        cut.c.service_period,
        cut.c.allocation_id,
        cut.c.project,
        cut.c.sku,
        sa.func.coalesce(price.sku_version, 0).label("sku_version"),
        sa.func.coalesce(price.price_per_hour, 0).label("price_per_hour"),
        cut.c.slot_count,
        cut.c.labels,
        cut.c.starts_at,
        cut.c.ends_at,
        cut.c.running,
        sa.func.array_cat(own, cut.c.positions).label("positions"),
        (duration * cut.c.slot_count * sign).label("slot_seconds"),
    ).select_from(sa.outerjoin(cut, usage_price, price.allocation_id == cut.c.allocation_id))
