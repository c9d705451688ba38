"""`/v1/usage`: usage of slots by project, SKU and label, and the events that each figure follows from (PLT-9)."""

import re
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from pydantic import AfterValidator

from control_plane.api.requests.access import AuthenticatedRoute, access
from control_plane.api.requests.pages import Cursor, Limit, Order, Page, invalid_cursor
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import plane_of
from control_plane.api.routes.usage.views import (
    EntryView,
    UnusedPartView,
    UsageView,
    amount_view,
    entry_view,
    group_view,
    part_view,
    unused_view,
)
from control_plane.api.routes.usage.wanted import Wanted, bill_of
from control_plane.decisions.access import Scope
from events.values import InvalidValue, Position
from read_models.usage import entries as usage
from read_models.usage.amounts import NOTHING
from read_models.usage.entries import Grouping, Place
from read_models.usage.tables import known_to
from read_models.usage.unused import sums, unused_parts

router = APIRouter(prefix="/v1", tags=["usage"], responses=PROBLEMS, route_class=AuthenticatedRoute)
_PLACE: Final = re.compile(r"([0-9]{1,18})\.([0-9]{1,9})", re.ASCII)
_LABEL_GROUP: Final = "label:"


def _grouping(raw: str | None) -> Grouping | None:
    if raw is None:
        return None
    if raw in ("project", "sku"):
        return Grouping(raw)
    name = raw.removeprefix(_LABEL_GROUP)
    if name == raw or not name:
        raise InvalidValue("grouping", raw[:80], "choose one of project, sku and label:NAME")
    return Grouping("label", name)


def _checked_grouping(raw: str | None) -> str | None:
    _grouping(raw)
    return raw


@router.get("/usage", openapi_extra=access(Scope.USAGE_READ))
async def show_usage(
    request: Request,
    wanted: Wanted,
    *,
    group_by: Annotated[
        str | None,
        Query(max_length=69, description="Group by `project`, `sku` or `label:NAME`. Default: no groups."),
        AfterValidator(_checked_grouping),
    ] = None,
) -> UsageView:
    """Return the usage of slots in a range of time or a billing period, in the projects of the caller: slot-seconds
    and price, in total and by group.

    An allocation uses its slots from the begin of its lease to the end of its lease, also while it is stopped.
    """
    async with plane_of(request).engine.connect() as conn:
        bill = await bill_of(conn, plane_of(request).handle.clock, wanted)
        position = bill.piece.known_to or await known_to(conn)
        grouping = _grouping(group_by)
        totals = await usage.totals(conn, wanted.which, bill, None)
        groups = [] if grouping is None else await usage.totals(conn, wanted.which, bill, grouping)
        unused = sums(await unused_parts(conn, wanted.which, bill.piece))
    return UsageView(
        period=bill.period,
        begin=bill.piece.starts_at,
        end=bill.piece.ends_at,
        position=position,
        total=amount_view(totals[0].amount if totals else NOTHING),
        groups=[group_view(each) for each in groups],
        unused_reservations=[unused_view(*key, seconds) for key, seconds in unused.items()],
    )


@router.get("/usage/entries", openapi_extra=access(Scope.USAGE_READ))
async def list_entries(
    request: Request,
    wanted: Wanted,
    *,
    cursor: Cursor = None,
    limit: Limit = 100,
    order: Order = "asc",
) -> Page[EntryView]:
    """List the entries that a figure of the usage is the sum of, each with its events, in the order of the allocations'
    requests.
    """
    after = None if cursor is None else _place(cursor)
    async with plane_of(request).engine.connect() as conn:
        bill = await bill_of(conn, plane_of(request).handle.clock, wanted)
        found = await usage.entries(
            conn, wanted.which, bill, after=after, limit=limit, descending=order == "desc"
        )
    following = _cursor(found[-1].place) if len(found) == limit else None
    return Page(items=[entry_view(each) for each in found], next_cursor=following)


@router.get("/usage/unused-reservations", openapi_extra=access(Scope.USAGE_READ))
async def list_unused_reservations(
    request: Request, wanted: Wanted, *, cursor: Cursor = None, limit: Limit = 100, order: Order = "asc"
) -> Page[UnusedPartView]:
    """List the times of which the unused parts of reservations are the sums, each with its events, by project, SKU and
    time.
    """
    async with plane_of(request).engine.connect() as conn:
        bill = await bill_of(conn, plane_of(request).handle.clock, wanted)
        parts = await unused_parts(conn, wanted.which, bill.piece)
    ordered = parts if order == "asc" else parts[::-1]
    keys = [f"{each.project}/{each.sku}/{each.position}" for each in ordered]
    if cursor is not None and cursor not in keys:
        raise invalid_cursor(cursor)
    first = 0 if cursor is None else keys.index(cursor) + 1
    items = ordered[first : first + limit]
    is_last = first + limit >= len(ordered)
    return Page(
        items=[part_view(each) for each in items], next_cursor=None if is_last else keys[first + limit - 1]
    )


def _place(cursor: str) -> Place:
    found = _PLACE.fullmatch(cursor)
    if found is None:
        raise invalid_cursor(cursor)
    return Place(Position(int(found[1])), int(found[2]))


def _cursor(place: Place) -> str:
    return f"{place.request}.{place.piece}"
