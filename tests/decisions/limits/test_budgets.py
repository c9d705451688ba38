"""Decisions about budgets: the calendar month, and what a lease costs in it."""

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest

from control_plane.decisions.budgets import Month, exceeded_budget, money, month_of, remaining, weight_of
from events.values import ProjectId

NOVEMBER = Month(datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC))
DAY = timedelta(days=1)


@pytest.mark.parametrize(
    ("moment", "month"),
    [
        (datetime(2026, 11, 1, tzinfo=UTC), NOVEMBER),
        (datetime(2026, 11, 30, 23, 59, 59, 999_999, tzinfo=UTC), NOVEMBER),
        # The month of another time zone does not count.
        (datetime(2026, 12, 1, 0, 30, tzinfo=timezone(timedelta(hours=1))), NOVEMBER),
        (datetime(2026, 12, 9, tzinfo=UTC), Month(NOVEMBER.ends_at, datetime(2027, 1, 1, tzinfo=UTC))),
    ],
    ids=["first", "last", "other_zone", "december"],
)
def test_month_is_the_calendar_month_in_utc(moment: datetime, month: Month) -> None:
    assert month_of(moment) == month


@pytest.mark.parametrize(
    ("begin", "end", "hours"),
    [
        (NOVEMBER.begins_at, NOVEMBER.begins_at + DAY, 24),
        (NOVEMBER.begins_at - DAY, NOVEMBER.begins_at + DAY, 24),
        (NOVEMBER.ends_at - DAY, NOVEMBER.ends_at + DAY, 24),
        (NOVEMBER.begins_at - DAY, NOVEMBER.ends_at + DAY, 720),
        (NOVEMBER.begins_at - DAY, NOVEMBER.begins_at, 0),
        (NOVEMBER.begins_at + DAY, NOVEMBER.begins_at, 0),
    ],
    ids=["inside", "begins_before", "ends_after", "whole", "before", "reversed"],
)
def test_budget_of_a_month_is_charged_for_the_part_of_a_lease_within_the_month(
    begin: datetime, end: datetime, hours: int
) -> None:
    assert weight_of("2.5", 2, begin, end, NOVEMBER) == Decimal("2.5") * 2 * hours * 3600


def test_budget_is_compared_exactly_and_shown_rounded() -> None:
    third = weight_of("0.01", 1, NOVEMBER.begins_at, NOVEMBER.begins_at + timedelta(seconds=1), NOVEMBER)
    assert (third, money(third)) == (Decimal("0.01"), "0.000003")
    name = ProjectId("vision")
    whole = third * 3600
    assert exceeded_budget(name, "0.02", whole, whole) == []
    [exceeded] = exceeded_budget(name, "0.02", whole, whole + Decimal("0.000001"))
    assert (exceeded.limit, exceeded.used, exceeded.remaining) == ("0.02", "0.01", "0.01")
    assert exceeded_budget(name, "0", whole, Decimal(0)) == [], "a request that costs nothing fits"
    assert remaining("0.005", whole) == "0"
