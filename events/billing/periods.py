"""Facts about billing periods. Stream: `billing`. Periods are closed in the order of time, without gaps."""

from datetime import datetime

from events.facts import Fact
from events.values import PeriodName, Position


class PeriodClosed(Fact, frozen=True):
    """A billing period was closed: its usage is permanently that which the ledger had up to a position."""

    period: PeriodName
    """Name of the period, unique among all periods, such as `2026-11`."""
    starts_at: datetime
    """Begin of the period, which contains this time. It is the end of the period that was closed before, if any."""
    ends_at: datetime
    """End of the period, which does not contain this time."""
    through: Position
    """Ledger position up to which events determine the usage of the closed period. Later events that change this usage
    are corrections in the period that is open then."""


BillingFact = PeriodClosed
