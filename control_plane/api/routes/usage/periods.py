"""`/v1/usage/periods`: billing periods, their totals, and closing them (PLT-9)."""

import re
from datetime import datetime
from typing import Final

from fastapi import APIRouter, Request

from control_plane.api.requests.access import AuthenticatedRoute, Caller, access, caller_of
from control_plane.api.requests.as_of import time_of
from control_plane.api.requests.bodies import ClosePeriod
from control_plane.api.requests.commands import execute
from control_plane.api.requests.pages import Cursor, Limit, Order, Page, invalid_cursor
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import origin_of, plane_of
from control_plane.api.routes.usage.views import PeriodBill, PeriodView, amount_view
from control_plane.api.routes.usage.wanted import bill_of_period, named_period
from control_plane.billing.closing import close_period
from control_plane.decisions.access import Scope, within
from control_plane.decisions.billing import bounds_of
from control_plane.decisions.refusals import Malformed, Objection
from events.values import OPEN_PERIOD, InvalidValue, PeriodName, period_name
from read_models.usage import periods
from read_models.usage.amounts import NOTHING
from read_models.usage.entries import totals, totals_by_kind
from read_models.usage.intervals import UsageFilter
from read_models.usage.periods import Closing, OpenPeriod, Period

router = APIRouter(
    prefix="/v1/usage/periods", tags=["usage"], responses=PROBLEMS, route_class=AuthenticatedRoute
)
_NUMBER: Final = re.compile(r"[0-9]{1,9}", re.ASCII)


@router.get("", openapi_extra=access(Scope.USAGE_READ))
async def list_periods(
    request: Request, *, cursor: Cursor = None, limit: Limit = 100, order: Order = "asc"
) -> Page[PeriodView]:
    """List the billing periods in the order of time; the last one is the open period."""
    after, descending = None if cursor is None else _number(cursor), order == "desc"
    async with plane_of(request).engine.connect() as conn:
        await conn.execution_options(isolation_level="REPEATABLE READ")
        current = await periods.open_period(conn, await plane_of(request).handle.clock(conn))
        last = 0 if current.last is None else current.last.number
        closed = await periods.page(conn, after=after, limit=limit, descending=descending)
        found = await periods.closings(conn, [each.number for each in closed])
    # In the list, the open period has the number after the last closed one.
    numbered = [(each.number, _closed_view(each, found[each.number])) for each in closed]
    if descending and (after is None or after > last + 1):
        numbered.insert(0, (last + 1, _open_view(current)))
    if not descending and len(closed) < limit and (after is None or after <= last):
        numbered.append((last + 1, _open_view(current)))
    shown = numbered[:limit]
    following = str(shown[-1][0]) if len(shown) == limit else None
    return Page(items=[view for _, view in shown], next_cursor=following)


@router.get("/{period}", openapi_extra=access(Scope.USAGE_READ))
async def show_period(request: Request, period: str) -> PeriodBill:
    """Return a closed billing period, or `open`, with the totals of its bill in the projects of the caller."""
    return await _shown(request, period)


@router.post("/{period}/close", openapi_extra=access(Scope.USAGE_WRITE))
async def close(request: Request, principal: Caller, period: str, body: ClosePeriod) -> PeriodBill:
    """Close a billing period after it has ended: its usage becomes final. Events that change it later are
    corrections in the period that is open then. Idempotent.

    A period begins where the one closed before it ends.
    """
    name = _named(period)
    bounds = bounds_of(name, time_of(body.starts_at), time_of(body.ends_at))
    await execute(request, close_period(name, bounds, origin_of(request, principal)))
    return await _shown(request, name)


async def _shown(request: Request, name: str) -> PeriodBill:
    which = UsageFilter(within(caller_of(request), None))
    async with plane_of(request).engine.connect() as conn:
        await conn.execution_options(isolation_level="REPEATABLE READ")
        now: datetime = await plane_of(request).handle.clock(conn)
        period = await named_period(conn, name, now)
        bill = await bill_of_period(conn, period, now)
        parts = await totals_by_kind(conn, which, bill)
        # Not the sum of the parts, because each figure is rounded once.
        everything = await totals(conn, which, bill, None)
        if isinstance(period, OpenPeriod):
            view = _open_view(period)
        else:
            view = _closed_view(period, (await periods.closings(conn, [period.number]))[period.number])
    return PeriodBill(
        **view.model_dump(),
        metered=amount_view(parts[False].amount if False in parts else NOTHING),
        corrections=amount_view(parts[True].amount if True in parts else NOTHING),
        total=amount_view(everything[0].amount if everything else NOTHING),
    )


def _closed_view(period: Period, closing: Closing) -> PeriodView:
    return PeriodView(
        name=period.name,
        state="closed",
        starts_at=period.starts_at,
        ends_at=period.ends_at,
        through=period.through,
        position=closing.position,
        closed_at=closing.recorded_at,
        closed_by=closing.actor,
    )


def _open_view(period: OpenPeriod) -> PeriodView:
    return PeriodView(
        name=OPEN_PERIOD,
        state="open",
        starts_at=period.starts_at,
        ends_at=period.ends_at,
        through=None,
        position=None,
        closed_at=None,
        closed_by=None,
    )


def _named(raw: str) -> PeriodName:
    try:
        return period_name(raw)
    except InvalidValue as error:
        raise Malformed(Objection("invalid_value", str(error), parameter="period")) from None


def _number(cursor: str) -> int:
    if not _NUMBER.fullmatch(cursor):
        raise invalid_cursor(cursor)
    return int(cursor)
