"""Decisions about the budget of a project: what a lease costs in a calendar month, and whether that is available.

Amounts are exact: a `weight` is a price per hour multiplied by slot-seconds, the unit in which usage is summed up too.
A weight becomes money by a division by 3,600, which is rounded for display only and never before a comparison.
"""

from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Final, NamedTuple

from control_plane.decisions.quotas import ExceededLimit, amount_text
from events.values import ProjectId

LIMIT: Final = "budget_per_month"
NOTHING: Final = Decimal(0)
_SECONDS_PER_HOUR: Final = 3600
_STEP: Final = Decimal("0.000001")
_EXACT: Final = Context(prec=60, rounding=ROUND_HALF_EVEN)


class Month(NamedTuple):
    """A calendar month in UTC: from `begins_at` up to, but not including, `ends_at`."""

    begins_at: datetime
    ends_at: datetime


def month_of(moment: datetime) -> Month:
    """Return the calendar month in UTC that contains a time."""
    in_utc = moment.astimezone(UTC)
    begin = in_utc.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    following = begin.year + begin.month // 12, begin.month % 12 + 1
    return Month(begin, begin.replace(year=following[0], month=following[1]))


def weight_of(price_per_hour: str, slots: int, begin: datetime, end: datetime, month: Month) -> Decimal:
    """Return the weight of a lease from `begin` to `end` within a month. `price_per_hour` is that of one slot."""
    duration = min(end, month.ends_at) - max(begin, month.begins_at)
    microseconds = (duration.days * 86_400 + duration.seconds) * 1_000_000 + duration.microseconds
    if microseconds <= 0:
        return NOTHING
    weight = _EXACT.multiply(Decimal(price_per_hour), Decimal(microseconds * slots))
    return weight.scaleb(-6, _EXACT)


def exceeded_budget(
    project: ProjectId, budget: str, committed: Decimal, requested: Decimal
) -> list[ExceededLimit]:
    """Return the budget as an exceeded limit if a request with the weight `requested` does not fit into it; an empty
    list if it fits, or if the request costs nothing in the month.
    """
    left = _EXACT.subtract(_EXACT.multiply(Decimal(budget), Decimal(_SECONDS_PER_HOUR)), committed)
    if requested <= 0 or requested <= left:
        return []
    amounts = (budget, money(committed), money(requested), remaining(budget, committed))
    return [ExceededLimit("project", project, LIMIT, *amounts)]


def remaining(budget: str, committed: Decimal) -> str:
    """Return the money of a budget that is not committed; 0 if more is committed."""
    left = _EXACT.subtract(_EXACT.multiply(Decimal(budget), Decimal(_SECONDS_PER_HOUR)), committed)
    return money(max(left, NOTHING))


def money(weight: Decimal) -> str:
    """Return a weight as money, rounded half to even to six decimals."""
    amount = _EXACT.divide(weight, Decimal(_SECONDS_PER_HOUR)).quantize(_STEP, context=_EXACT)
    return amount_text(amount)
