"""`read.billing_period`: closed billing periods, and what the bill of a period consists of. The table is written in the
transaction that appends the event to the ledger, so that the next period is closed where the last one ends.

The bill of a period has two parts. The metered usage is that of the time of the period, as the ledger had it up to the
period's position `through`. The corrections are the changes of earlier closed periods by the events between the
positions of the previous and of this period. The time after the last closed period is the open period, to which the
same applies with all events. So the bills of all periods together are the usage of all events, and each is permanent
once its period is closed.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, assert_never

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from events.billing.periods import BillingFact, PeriodClosed
from events.ledger.tables import event, metadata
from events.values import OPEN_PERIOD, PeriodName, Position, stream_of_billing
from read_models.pages import keyset
from read_models.rows import Patch
from read_models.usage.tables import TIME, usage_lease

billing_period = sa.Table(
    "billing_period",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("number", sa.BigInteger, nullable=False, unique=True),
    sa.Column("starts_at", TIME, nullable=False),
    sa.Column("ends_at", TIME, nullable=False),
    sa.Column("through", sa.BigInteger, nullable=False),
    schema="read",
)
_DECEMBER: Final = 12


class Period(NamedTuple):
    """A closed billing period. `number` counts from 1, and `through` is the position up to which events determine its
    usage.
    """

    number: int
    name: PeriodName
    starts_at: datetime
    ends_at: datetime
    through: Position


class Piece(NamedTuple):
    """Metered usage of a range of time: from `starts_at` (None: the beginning) up to, but not including, `ends_at`, by
    the events up to `known_to` (None: by all).
    """

    starts_at: datetime | None
    ends_at: datetime
    known_to: Position | None = None


class Corrections(NamedTuple):
    """The changes of the periods with smaller numbers than `before`, by the events after `since` up to `known_to`
    (None: by all).
    """

    before: int
    since: Position
    known_to: Position | None = None


class Bill(NamedTuple):
    """Usage of a range of time, or the bill of the period named `period`, with these bounds (None: a range)."""

    piece: Piece
    corrections: Corrections | None = None
    period: str | None = None
    bounds: tuple[datetime, datetime] | None = None


class OpenPeriod(NamedTuple):
    """The time since the last closed period (None: no period is closed). `ends_at` is the end of the present month."""

    starts_at: datetime
    ends_at: datetime
    last: Period | None


class Closing(NamedTuple):
    """The event that closed a period: its position, its caller and when it was recorded."""

    position: Position
    actor: str
    recorded_at: datetime


def patch(version: int, fact: BillingFact) -> Patch:
    """Return the patch that a fact applies to the row of its period. `version` is the fact's version in the stream of
    all periods, which numbers them.
    """
    match fact:
        case PeriodClosed(starts_at=starts_at, ends_at=ends_at, through=through):
            born = {"number": version, "starts_at": starts_at, "ends_at": ends_at, "through": through}
            return Patch(fact.period, {}, born)
        case _:
            assert_never(fact)


def bill_of(period: Period, previous: Period | None) -> Bill:
    """Return the bill of a closed period. `previous` is the period closed before it, if any."""
    piece = Piece(period.starts_at, period.ends_at, period.through)
    corrections = None if previous is None else Corrections(period.number, previous.through, period.through)
    return Bill(piece, corrections, period.name, (period.starts_at, period.ends_at))


def bill_of_open(period: OpenPeriod, now: datetime) -> Bill:
    """Return the bill of the open period until `now`."""
    last = period.last
    corrections = None if last is None else Corrections(last.number + 1, last.through)
    piece = Piece(period.starts_at, max(now, period.starts_at))
    return Bill(piece, corrections, OPEN_PERIOD, (period.starts_at, period.ends_at))


def month_begin(moment: datetime) -> datetime:
    """Return the begin of the calendar month (UTC) that contains a time."""
    return moment.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def month_end(moment: datetime) -> datetime:
    """Return the end of the calendar month (UTC) that contains a time, which is the begin of the next month."""
    begin = month_begin(moment)
    if begin.month == _DECEMBER:
        return begin.replace(year=begin.year + 1, month=1)
    return begin.replace(month=begin.month + 1)


async def find(conn: AsyncConnection, name: str) -> Period | None:
    """Return the closed period with this name, or None."""
    row = (await conn.execute(_PERIODS.where(billing_period.c.name == name))).one_or_none()
    return None if row is None else _period(row)


async def numbered(conn: AsyncConnection, number: int) -> Period | None:
    """Return the closed period with this number, or None."""
    row = (await conn.execute(_PERIODS.where(billing_period.c.number == number))).one_or_none()
    return None if row is None else _period(row)


async def closings(conn: AsyncConnection, numbers: Sequence[int]) -> dict[int, Closing]:
    """Return the events that closed the periods with these numbers."""
    query = sa.select(event.c.version, event.c.position, event.c.actor, event.c.recorded_at).where(
        event.c.stream_id == stream_of_billing(), event.c.version.in_(numbers)
    )
    return {
        row.version: Closing(Position(row.position), row.actor, row.recorded_at)
        for row in await conn.execute(query)
    }


async def page(
    conn: AsyncConnection, *, after: int | None, limit: int, descending: bool = False
) -> list[Period]:
    """Return one page of the closed periods in the order of time."""
    place = None if after is None else (after,)
    query = keyset(_PERIODS, [billing_period.c.number], place, limit, descending=descending)
    return [_period(row) for row in await conn.execute(query)]


async def closed_before(conn: AsyncConnection, number: int | None) -> list[Period]:
    """Return the closed periods with smaller numbers (None: all), in the order of time."""
    query = _PERIODS.order_by(billing_period.c.number)
    if number is not None:
        query = query.where(billing_period.c.number < number)
    return [_period(row) for row in await conn.execute(query)]


async def open_period(conn: AsyncConnection, now: datetime) -> OpenPeriod:
    """Return the open period. If no period is closed yet, it begins with the month of the first usage."""
    newest = await page(conn, after=None, limit=1, descending=True)
    if newest:
        return OpenPeriod(newest[0].ends_at, month_end(max(now, newest[0].ends_at)), newest[0])
    first = await conn.scalar(sa.select(sa.func.min(usage_lease.c.starts_at)))
    return OpenPeriod(month_begin(first or now), month_end(now), None)


_PERIODS: Final = sa.select(*(billing_period.c[each] for each in Period._fields))


def _period(row: Any) -> Period:
    return Period(*row)
