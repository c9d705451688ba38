"""Pure functions that find the bill with the newest entry for the use of an allocation in a closed billing period."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from events.values import Position
from read_models.usage.periods import Period
from read_models.usage.tables import ENDED


class LeaseRow(NamedTuple):
    """A row of `read.usage_lease` of one allocation."""

    position: Position
    kind: str
    starts_at: datetime | None
    ends_at: datetime


def entered_in(rows: Sequence[LeaseRow], service: Period, later: Iterable[Period]) -> Period | None:
    """Return the period that bills the newest entry for the use of an allocation in the period `service`; None if
    no bill has one. `later` are the periods closed after `service`, in the order of time.
    """
    known = _cut(rows, service, service.through)
    newest = None if known is None else service
    for each in later:
        now = _cut(rows, service, each.through)
        if now != known:
            known, newest = now, None if now is None else each
    return newest


def _cut(rows: Sequence[LeaseRow], service: Period, known_to: Position) -> tuple[datetime, datetime] | None:
    """Return the interval of the lease within the period, by the rows up to a position; None if it is empty."""
    known = [row for row in rows if row.position <= known_to]
    starts = [row.starts_at for row in known if row.starts_at is not None]
    if not starts:
        return None
    expires = max(row.ends_at for row in known if row.kind != ENDED)
    ended = min((row.ends_at for row in known if row.kind == ENDED), default=expires)
    begin, end = max(*starts, service.starts_at), min(expires, ended, service.ends_at)
    return (begin, end) if begin < end else None
