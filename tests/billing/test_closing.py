"""A billing period is closed once, after it has ended, without a gap, and with complete usage (PLT-9)."""

from datetime import UTC, datetime

import pytest

from control_plane.decisions.billing import Bounds, UsageState, bounds_of, close
from control_plane.decisions.refusals import Conflict, Malformed
from events.billing.periods import PeriodClosed
from events.values import InvalidValue, PeriodName, Position, period_name

NOVEMBER, DECEMBER = PeriodName("2026-11"), PeriodName("2026-12")
COMPLETE = UsageState(Position(70), complete_until_end=True)
AFTER = datetime(2027, 2, 1, tzinfo=UTC)


def bounds(name: str) -> Bounds:
    return bounds_of(PeriodName(name), None, None)


CLOSED = PeriodClosed(NOVEMBER, *bounds(NOVEMBER), Position(50))


@pytest.mark.parametrize(
    ("name", "begin", "end"), [("2026-11", (2026, 11), (2026, 12)), ("2026-12", (2026, 12), (2027, 1))]
)
def test_billing_period_named_after_a_month_begins_and_ends_with_the_month_in_utc(
    name: str, begin: tuple[int, int], end: tuple[int, int]
) -> None:
    assert bounds(name) == Bounds(datetime(*begin, 1, tzinfo=UTC), datetime(*end, 1, tzinfo=UTC))


@pytest.mark.parametrize("name", ["2026-13", "0000-01", "9999-12", "november"])
def test_billing_period_not_named_after_a_month_requires_a_start_and_an_end(name: str) -> None:
    for given in ((None, None), (None, AFTER), (AFTER, None)):
        with pytest.raises(Malformed) as refused:
            bounds_of(PeriodName(name), *given)
        assert refused.value.objections[0].code == "required"


def test_billing_period_that_ends_at_its_start_time_is_refused() -> None:
    with pytest.raises(Malformed) as refused:
        bounds_of(PeriodName("x"), AFTER, AFTER)
    assert refused.value.objections[0].code == "range_reversed"


def test_period_that_ended_is_closed_with_the_events_that_the_usage_contains() -> None:
    [fact] = close(DECEMBER, bounds(DECEMBER), [CLOSED], COMPLETE, bounds(DECEMBER).ends_at)
    assert fact == PeriodClosed(DECEMBER, *bounds(DECEMBER), Position(70))


def test_closing_a_closed_period_again_changes_nothing() -> None:
    assert close(NOVEMBER, bounds(NOVEMBER), [CLOSED], COMPLETE, AFTER) == ()


@pytest.mark.parametrize(
    ("name", "closed", "usage", "now", "codes"),
    [
        (NOVEMBER, [CLOSED], COMPLETE, AFTER, ["period_closed"]),
        ("2027-01", [CLOSED], COMPLETE, AFTER, ["period_not_adjacent"]),
        (DECEMBER, [CLOSED], COMPLETE, datetime(2026, 12, 31, 23, tzinfo=UTC), ["period_not_ended"]),
        (
            "2027-01",
            [CLOSED],
            COMPLETE,
            datetime(2026, 12, 31, tzinfo=UTC),
            ["period_not_adjacent", "period_not_ended"],
        ),
        (DECEMBER, [CLOSED], UsageState(Position(70), complete_until_end=False), AFTER, ["usage_incomplete"]),
        (DECEMBER, [CLOSED], UsageState(Position(49), complete_until_end=True), AFTER, ["usage_incomplete"]),
    ],
)
def test_period_that_cannot_be_closed_is_refused_with_every_reason(
    name: str, closed: list[PeriodClosed], usage: UsageState, now: datetime, codes: list[str]
) -> None:
    wanted = bounds(DECEMBER) if codes == ["period_closed"] else bounds(name)
    with pytest.raises(Conflict) as refused:
        close(PeriodName(name), wanted, closed, usage, now)
    assert [each.code for each in refused.value.objections] == codes


@pytest.mark.parametrize("raw", ["", "open", "-x", "x-", "November", "a" * 32, "2026_11"])
def test_invalid_name_of_a_period_is_refused(raw: str) -> None:
    with pytest.raises(InvalidValue):
        period_name(raw)
