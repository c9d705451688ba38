"""Query parameters of `/v1/usage`: filters, and a range of time or a billing period."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import Depends, Query, Request
from pydantic import AfterValidator
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.api.requests.access import caller_of
from control_plane.api.requests.as_of import Time, time_of, timed
from control_plane.decisions.access import within
from control_plane.decisions.refusals import Malformed, Objection, UnknownName
from control_plane.handle import Clock
from events.values import OPEN_PERIOD, InvalidValue, period_name, project_id, sku_name
from read_models.usage import periods
from read_models.usage.intervals import UsageFilter
from read_models.usage.periods import Bill, OpenPeriod, Period, Piece


@dataclass(frozen=True, slots=True)
class WantedUsage:
    """The usage that a request selects: by the filter `which`, in the range from `begin` (None: the first usage) to
    `end` (None: now), or in the billing period `period`.
    """

    which: UsageFilter
    begin: datetime | None
    end: datetime | None
    period: str | None = None


def _label(raw: str | None) -> tuple[str, str] | None:
    if raw is None:
        return None
    name, equals, value = raw.partition("=")
    if not name or not equals:
        raise InvalidValue("label", raw[:64], "use NAME=VALUE, such as team=vision")
    return name, value


def _checked_label(raw: str | None) -> str | None:
    _label(raw)
    return raw


def _checked_project(raw: str | None) -> str | None:
    return None if raw is None else project_id(raw)


def _checked_sku(raw: str | None) -> str | None:
    return None if raw is None else sku_name(raw)


def _checked_period(raw: str | None) -> str | None:
    return raw if raw in (None, OPEN_PERIOD) else period_name(raw)


def _wanted(
    request: Request,
    *,
    from_: Annotated[Time, timed("from", "Only usage since this time. Default: all")] = None,
    to: Annotated[Time, timed("to", "Only usage before this time. Default: now")] = None,
    project: Annotated[
        str | None,
        Query(max_length=63, description="Only usage of this project."),
        AfterValidator(_checked_project),
    ] = None,
    sku: Annotated[
        str | None, Query(max_length=63, description="Only usage of this SKU."), AfterValidator(_checked_sku)
    ] = None,
    period: Annotated[
        str | None,
        Query(
            max_length=31,
            description="Only the usage that this billing period bills, with its corrections of earlier periods:"
            " the name of a closed period, or `open`. Not together with `from` and `to`.",
        ),
        AfterValidator(_checked_period),
    ] = None,
    label: Annotated[
        str | None,
        Query(max_length=319, description="Only usage of allocations with this label, `NAME=VALUE`."),
        AfterValidator(_checked_label),
    ] = None,
) -> WantedUsage:
    own = within(caller_of(request), None if project is None else project_id(project))
    which = UsageFilter(own, None if sku is None else sku_name(sku), _label(label))
    begin, end = time_of(from_), time_of(to)
    if begin is not None and end is not None and begin > end:
        reason = f"'from' is {begin.isoformat()}, which is after {end.isoformat()} of 'to'; swap them"
        raise Malformed(Objection("range_reversed", reason, parameter="from"))
    if period is not None and (begin is not None or end is not None):
        reason = f"the request names the billing period {period!r} and a range of time; name one of them"
        raise Malformed(Objection("range_and_period", reason, parameter="period"))
    return WantedUsage(which, begin, end, period)


Wanted = Annotated[WantedUsage, Depends(_wanted)]


async def bill_of(conn: AsyncConnection, clock: Clock, wanted: WantedUsage) -> Bill:
    """Return the bill of the usage that a request selects. A range with an end in the future ends now. All later
    queries of the connection read the same snapshot. Raises `UnknownName` for a billing period that does not exist.
    """
    await conn.execution_options(isolation_level="REPEATABLE READ")
    now = await clock(conn)
    if wanted.period is None:
        end = now if wanted.end is None else min(wanted.end, now)
        return Bill(Piece(wanted.begin, end))
    found = await named_period(conn, wanted.period, now)
    return await bill_of_period(conn, found, now)


async def named_period(conn: AsyncConnection, name: str, now: datetime) -> Period | OpenPeriod:
    """Return the closed billing period with this name, or the open period for the name `open`. Raises `UnknownName`."""
    if name == OPEN_PERIOD:
        return await periods.open_period(conn, now)
    found = await periods.find(conn, name)
    if found is None:
        reason = f"no closed billing period is named {name!r}; usage since the last closed one is in {OPEN_PERIOD!r}"
        raise UnknownName(Objection("unknown_period", reason, parameter="period"))
    return found


async def bill_of_period(conn: AsyncConnection, period: Period | OpenPeriod, now: datetime) -> Bill:
    """Return the bill of a billing period. The bill of the open period has the usage until `now`."""
    if isinstance(period, OpenPeriod):
        return periods.bill_of_open(period, now)
    previous = await periods.numbered(conn, period.number - 1)
    return periods.bill_of(period, previous)
