"""Decisions about billing periods: which period is meant, and whether it can be closed."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from control_plane.decisions.refusals import Conflict, Malformed, Objection, refuse_if
from events.billing.periods import PeriodClosed
from events.values import PeriodName, Position

_MONTH: Final = re.compile(r"([0-9]{4})-(0[1-9]|1[0-2])", re.ASCII)
_DECEMBER: Final = 12
_LAST_YEAR: Final = 9998


class Bounds(NamedTuple):
    """Begin and end of a billing period, which contains its begin and not its end."""

    starts_at: datetime
    ends_at: datetime


class UsageState(NamedTuple):
    """How far the usage contains the ledger: up to the position `known_to`. `complete_until_end`: it contains every
    event that was recorded before the end of the period in question.
    """

    known_to: Position
    complete_until_end: bool


def bounds_of(name: PeriodName, starts_at: datetime | None, ends_at: datetime | None) -> Bounds:
    """Return the bounds of a period: those that are given, or those of the calendar month (UTC) that it is named after.
    Raises `Malformed`.
    """
    month = _month(name)
    if starts_at is None and ends_at is None and month is not None:
        return month
    if starts_at is None or ends_at is None:
        reason = f"period {name!r} needs starts_at and ends_at; without both, name a calendar month such as 2026-11"
        raise Malformed(Objection("required", reason, "/starts_at" if starts_at is None else "/ends_at"))
    if starts_at >= ends_at:
        reason = f"starts_at is {starts_at.isoformat()}, which is not before {ends_at.isoformat()} of ends_at"
        raise Malformed(Objection("range_reversed", reason, "/starts_at"))
    return Bounds(starts_at, ends_at)


def _month(name: str) -> Bounds | None:
    found = _MONTH.fullmatch(name)
    if found is None or not 1 <= int(found[1]) <= _LAST_YEAR:
        return None
    year, month = int(found[1]), int(found[2])
    following = (year + 1, 1) if month == _DECEMBER else (year, month + 1)
    return Bounds(datetime(year, month, 1, tzinfo=UTC), datetime(*following, 1, tzinfo=UTC))


def close(
    name: PeriodName, bounds: Bounds, closed: Sequence[PeriodClosed], usage: UsageState, now: datetime
) -> tuple[PeriodClosed, ...]:
    """Return the fact that closes a period; no fact if it is closed already with the same bounds. `closed` are all
    closed periods, in the order of time. Raises `Conflict`.
    """
    same = next((each for each in closed if each.period == name), None)
    if same is not None:
        if Bounds(same.starts_at, same.ends_at) == bounds:
            return ()
        reason = f"period {name} is closed from {same.starts_at.isoformat()} to {same.ends_at.isoformat()}"
        raise Conflict(Objection("period_closed", f"{reason}; a closed period cannot be changed"))
    refuse_if(against_closing(name, bounds, closed, usage, now))
    return (PeriodClosed(name, bounds.starts_at, bounds.ends_at, usage.known_to),)


def against_closing(
    name: PeriodName, bounds: Bounds, closed: Sequence[PeriodClosed], usage: UsageState, now: datetime
) -> list[Objection]:
    """Return the reasons why a period that is not closed cannot be closed now."""
    found = list[Objection]()
    if closed and closed[-1].ends_at != bounds.starts_at:
        last = closed[-1]
        reason = (
            f"period {name} begins at {bounds.starts_at.isoformat()}, but it must begin at"
            f" {last.ends_at.isoformat()}, where period {last.period} ends"
        )
        found.append(Objection("period_not_adjacent", reason, "/starts_at"))
    if now < bounds.ends_at:
        reason = f"period {name} ends at {bounds.ends_at.isoformat()}; close it then"
        return [*found, Objection("period_not_ended", reason, "/ends_at")]
    through = closed[-1].through if closed else Position(0)
    if not usage.complete_until_end or usage.known_to < through:
        reason = (
            f"the usage has the events up to position {usage.known_to}, and lacks events from before the end of the"
            " period; repeat the request when the projector has read them"
        )
        found.append(Objection("usage_incomplete", reason))
    return found
