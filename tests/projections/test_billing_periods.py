"""The bills of all periods are together the usage of the whole ledger, and no event changes a closed one (PLT-9)."""

import asyncio
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.database import LONG_PAUSES, engine_of
from deploy.embedded.stack import sqlalchemy_url
from events.allocations import LeaseEnded, LeaseGranted, LeaseRenewed
from events.billing.periods import PeriodClosed
from events.envelope import Recorded
from events.facts import Fact
from events.values import OPEN_PERIOD, Epoch, PeriodName, Position, stream_of_billing
from read_models.usage import entries, periods
from read_models.usage.amounts import EntryKind
from read_models.usage.corrected import LeaseRow, entered_in
from read_models.usage.intervals import UsageFilter, entries_of
from read_models.usage.periods import Bill, Period, month_begin, month_end
from tests.projections import usage_by_hand as by_hand
from tests.projections.usage_histories import CAUSE, START, histories, project
from tests.servers.postgres import Database
from tests.torture import count

END = START + timedelta(minutes=40)
"""A time after every time in a generated history."""
boundaries = st.lists(st.integers(1, 35), min_size=2, max_size=4, unique=True).map(sorted)


@pytest.fixture
def runner(database: Database) -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


def closed_periods(minutes: Sequence[int], throughs: Sequence[int]) -> list[Period]:
    """Return periods that end at these minutes, each with the events up to a position."""
    bounds = [START, *(START + timedelta(minutes=each) for each in minutes)]
    return [
        Period(number, PeriodName(f"p{number}"), begin, end, Position(through))
        for number, ((begin, end), through) in enumerate(zip(pairwise(bounds), throughs, strict=True), 1)
    ]


def closing(period: Period, position: int) -> Recorded[Fact]:
    fact = PeriodClosed(period.name, period.starts_at, period.ends_at, period.through)
    return Recorded(
        Position(position), UUID(int=position), stream_of_billing(), period.number, fact, CAUSE, END, Epoch(1)
    )


def used(events: Sequence[Recorded[Fact]], upto: int, begin: datetime, end: datetime) -> Fraction:
    """Compute the price of the usage between two times from the events up to a position, second by second."""
    leases = by_hand.leases(each for each in events if each.position <= upto).values()
    _, price = by_hand.total([(lease, by_hand.metered(lease, begin, end)) for lease in leases])
    return price


def billed(events: Sequence[Recorded[Fact]], closed: Sequence[Period], number: int) -> Fraction:
    """Return the expected price of the bill of period `number`, with its corrections. The open period has the number
    after the last closed one.
    """
    last = max(each.position for each in events)
    known = {each.number: each.through for each in closed} | {len(closed) + 1: last}
    bounds = {each.number: (each.starts_at, each.ends_at) for each in closed}
    bounds[len(closed) + 1] = (closed[-1].ends_at, END)
    corrections = sum(
        used(events, known[number], *bounds[each]) - used(events, known[number - 1], *bounds[each])
        for each in range(1, number)
    )
    return used(events, known[number], *bounds[number]) + corrections


async def bills_of(conn: AsyncConnection) -> list[Bill]:
    closed = await periods.closed_before(conn, None)
    previous: list[Period | None] = [None, *closed]
    found = [periods.bill_of(each, before) for each, before in zip(closed, previous, strict=False)]
    return [*found, periods.bill_of_open(await periods.open_period(conn, END), END)]


async def rows_of(conn: AsyncConnection, bill: Bill) -> list[Any]:
    found = entries_of(UsageFilter(), bill)
    return [*(await conn.execute(sa.select(found).order_by(found.c.request, found.c.piece))).all()]


def rows_of_leases(events: Sequence[Recorded[Fact]]) -> list[tuple[str, LeaseRow]]:
    """Return what the read model stores of each change of a lease, with the allocation."""
    found = list[tuple[str, LeaseRow]]()
    for each in events:
        position, recorded_at = each.position, each.recorded_at
        match each.fact:
            case LeaseGranted(allocation_id=name, granted_at=start, expires_at=end):
                found.append((name, LeaseRow(position, "granted", start, end)))
            case LeaseRenewed(allocation_id=name, expires_at=end):
                found.append((name, LeaseRow(position, "renewed", None, end)))
            case LeaseEnded(allocation_id=name):
                found.append((name, LeaseRow(position, "ended", None, recorded_at)))
            case _:
                continue
    return found


def check_corrections(
    events: Sequence[Recorded[Fact]], closed: Sequence[Period], bills: Sequence[Sequence[Any]]
) -> None:
    """Check that each reversal takes back the newest entry of its allocation and period of use, and that each entry is
    replaced at most once.
    """
    names = [*(each.name for each in closed), OPEN_PERIOD]
    newest: dict[tuple[str, str], tuple[str, Any]] = {}
    for billing, rows in zip(names, bills, strict=True):
        for row in rows:
            key = (row.allocation_id, row.service_period or billing)
            if row.kind == EntryKind.METERED:
                assert key not in newest
                newest[key] = (billing, row)
                continue
            known = newest.get(key)
            if row.kind == EntryKind.REVERSAL:
                assert known is not None
                taken_back = known[1]
                assert (row.starts_at, row.ends_at) == (taken_back.starts_at, taken_back.ends_at)
                assert row.slot_seconds == -taken_back.slot_seconds
            leases = [each for each in rows_of_leases(events) if each[0] == row.allocation_id]
            service = closed[names.index(row.service_period)]
            later = closed[service.number : names.index(billing)]
            found = entered_in([each for _, each in leases], service, later)
            assert (None if known is None else known[0]) == (None if found is None else found.name)
            if row.kind == EntryKind.REVERSAL:
                # The re-entry follows in the same bill, and replaces the entry that is reversed here.
                reentered = any(
                    (each.allocation_id, each.service_period) == key and each.kind == EntryKind.RE_ENTRY
                    for each in rows
                )
                if not reentered:
                    del newest[key]
        for row in rows:
            if row.kind == EntryKind.RE_ENTRY:
                newest[row.allocation_id, row.service_period] = (billing, row)


@pytest.mark.timeout(300)  # Shrinking a failing history takes minutes.
def test_bills_of_any_history_equal_a_computation_by_hand_and_together_the_usage_of_all_events(
    database: Database, runner: asyncio.Runner
) -> None:
    engine = engine_of(sqlalchemy_url(database.app_dsn).render_as_string(hide_password=False), 1)

    @settings(
        max_examples=count(2000, usual_share=40),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(histories(), boundaries, st.data())
    def bills_equal(events: list[Recorded[Fact]], minutes: list[int], data: st.DataObject) -> None:
        positions = st.integers(0, len(events))
        throughs = data.draw(st.lists(positions, min_size=len(minutes), max_size=len(minutes)).map(sorted))
        closed = closed_periods(minutes, throughs)
        recorded = [*events, *(closing(each, len(events) + each.number) for each in closed)]

        async def found() -> tuple[list[list[Any]], list[Decimal], list[Decimal]]:
            async with engine.connect() as conn:
                await conn.exec_driver_sql(LONG_PAUSES)
                await project(conn, recorded)
                bills = await bills_of(conn)
                rows = [await rows_of(conn, bill) for bill in bills]
                totals = [await entries.totals(conn, UsageFilter(), bill, None) for bill in bills]
                parts = [await entries.totals_by_kind(conn, UsageFilter(), bill) for bill in bills]
                await conn.rollback()
            sums = [sum((each.amount.slot_seconds for each in part.values()), Decimal()) for part in parts]
            seconds = [each[0].amount.slot_seconds if each else Decimal() for each in totals]
            return rows, sums, seconds

        rows, sums, seconds = runner.run(found())
        assert sums == seconds
        prices = [
            sum((Fraction(row.slot_seconds) * Fraction(row.price_per_hour) for row in bill), Fraction())
            / 3600
            for bill in rows
        ]
        assert prices == [billed(recorded, closed, number) for number in range(1, len(closed) + 2)]
        assert sum(prices) == used(recorded, len(recorded), START, END)
        check_corrections(events, closed, rows)

    try:
        bills_equal()
    finally:
        runner.run(engine.dispose())


@pytest.mark.parametrize(
    ("moment", "begin", "end"),
    [
        ("2026-11-28T14:00:00+00:00", "2026-11-01", "2026-12-01"),
        ("2026-12-01T00:00:00+00:00", "2026-12-01", "2027-01-01"),
        ("2027-01-01T00:30:00+01:00", "2026-12-01", "2027-01-01"),
    ],
)
def test_calendar_month_is_that_of_utc(moment: str, begin: str, end: str) -> None:
    times = [datetime.fromisoformat(each).replace(tzinfo=UTC) for each in (begin, end)]
    parsed = datetime.fromisoformat(moment)
    assert [month_begin(parsed), month_end(parsed)] == times
