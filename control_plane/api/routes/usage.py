"""`/v1/usage`: usage of slots by project, SKU and label, and the events that each figure follows from (PLT-9)."""

import re
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Query, Request
from pydantic import AfterValidator, BaseModel
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.api.requests.access import AuthenticatedRoute, access, caller_of
from control_plane.api.requests.as_of import Time, time_of, timed
from control_plane.api.requests.pages import Cursor, Limit, Order, Page, invalid_cursor
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import plane_of
from control_plane.decisions.access import Scope, within
from control_plane.decisions.refusals import Malformed, Objection
from control_plane.handle import Clock
from events.values import InvalidValue, Position, project_id, sku_name
from read_models import usage
from read_models.usage import Entry, Grouping, Place, Total, UsageFilter
from read_models.usage_pieces import Amount, EntryKind, Piece, amount_of, pieces_of

router = APIRouter(prefix="/v1", tags=["usage"], responses=PROBLEMS, route_class=AuthenticatedRoute)
_PLACE: Final = re.compile(r"([0-9]{1,18})\.([0-9]{1,9})", re.ASCII)
_LABEL_GROUP: Final = "label:"


class AmountView(BaseModel):
    """An amount of usage. Both are decimal numbers with six decimals: the seconds of all slots, which are exact, and
    their price in the currency of the deployment, which is rounded once, half to even.
    """

    slot_seconds: str
    price: str


class GroupView(BaseModel):
    """The usage of one group, and the number of its entries.

    `key` is the project, the SKU or the value of the label; null for allocations without the label.
    """

    key: str | None
    amount: AmountView
    entries: int


class UsageView(BaseModel):
    """Usage between two times. `begin` is null if everything before `end` is included; `end` is not in the future.

    `position` is the position of the ledger up to which events are included. The total is rounded by itself, and may
    differ from the sum of rounded groups in the last decimals.
    """

    begin: datetime | None
    end: datetime
    position: int
    total: AmountView
    groups: list[GroupView]


class SourceView(BaseModel):
    """An event from which an entry follows."""

    position: int
    id: str
    type: str


class EntryView(BaseModel):
    """The usage of one allocation in the range: `slot_count` slots from `starts_at` to `ends_at`.

    `kind`: metered. `running` is whether the lease had not ended yet; the entry then grows with time until the lease
    ends or expires.
    """

    kind: EntryKind
    allocation_id: str
    project: str
    sku: str
    sku_version: int
    price_per_hour: str
    """Price of one slot per hour, a decimal number in the currency of the deployment."""
    slot_count: int
    labels: dict[str, str]
    starts_at: datetime
    ends_at: datetime
    running: bool
    amount: AmountView
    events: list[SourceView]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a request wants: which usage, from when and until when (None: now)."""

    which: UsageFilter
    begin: datetime | None
    end: datetime | None


def _label(raw: str | None) -> tuple[str, str] | None:
    if raw is None:
        return None
    name, equals, value = raw.partition("=")
    if not name or not equals:
        raise InvalidValue("label", raw[:64], "use NAME=VALUE, such as team=vision")
    return name, value


def _grouping(raw: str | None) -> Grouping | None:
    if raw is None:
        return None
    if raw in ("project", "sku"):
        return Grouping(raw)
    name = raw.removeprefix(_LABEL_GROUP)
    if name == raw or not name:
        raise InvalidValue("grouping", raw[:80], "choose one of project, sku and label:NAME")
    return Grouping("label", name)


def _checked_label(raw: str | None) -> str | None:
    _label(raw)
    return raw


def _checked_grouping(raw: str | None) -> str | None:
    _grouping(raw)
    return raw


def _checked_project(raw: str | None) -> str | None:
    return None if raw is None else project_id(raw)


def _checked_sku(raw: str | None) -> str | None:
    return None if raw is None else sku_name(raw)


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
    label: Annotated[
        str | None,
        Query(max_length=319, description="Only usage of allocations with this label, `NAME=VALUE`."),
        AfterValidator(_checked_label),
    ] = None,
) -> _Wanted:
    own = within(caller_of(request), None if project is None else project_id(project))
    which = UsageFilter(own, None if sku is None else sku_name(sku), _label(label))
    begin, end = time_of(from_), time_of(to)
    if begin is not None and end is not None and begin > end:
        reason = f"'from' is {begin.isoformat()}, which is after {end.isoformat()} of 'to'; swap them"
        raise Malformed(Objection("range_reversed", reason, parameter="from"))
    return _Wanted(which, begin, end)


Wanted = Annotated[_Wanted, Depends(_wanted)]


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
    """Return the usage of slots in a range of time, in the projects of the caller: slot-seconds and price, in total and
    by group.

    An allocation uses its slots from the begin of its lease to the end of its lease, also while it is stopped.
    """
    async with plane_of(request).engine.connect() as conn:
        end, pieces = await _pieces(conn, plane_of(request).handle.clock, wanted)
        position = await usage.known_to(conn)
        grouping = _grouping(group_by)
        totals = await usage.totals(conn, wanted.which, pieces, None)
        groups = [] if grouping is None else await usage.totals(conn, wanted.which, pieces, grouping)
    return UsageView(
        begin=wanted.begin,
        end=end,
        position=position,
        total=_amount_view(totals[0].amount if totals else amount_of(Decimal(0), Decimal(0))),
        groups=[_group_view(each) for each in groups],
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
        _, pieces = await _pieces(conn, plane_of(request).handle.clock, wanted)
        found = await usage.entries(
            conn, wanted.which, pieces, after=after, limit=limit, descending=order == "desc"
        )
    following = _cursor(found[-1].place) if len(found) == limit else None
    return Page(items=[_entry_view(each) for each in found], next_cursor=following)


async def _pieces(conn: AsyncConnection, clock: Clock, wanted: _Wanted) -> tuple[datetime, list[Piece]]:
    """Return the end of a range, which is at most now, and the pieces of the range. All queries of a connection see the
    same state afterwards.
    """
    await conn.execution_options(isolation_level="REPEATABLE READ")
    now = await clock(conn)
    end = now if wanted.end is None else min(wanted.end, now)
    return end, pieces_of(wanted.begin, end)


def _place(cursor: str) -> Place:
    found = _PLACE.fullmatch(cursor)
    if found is None:
        raise invalid_cursor(cursor)
    return Place(Position(int(found[1])), int(found[2]))


def _cursor(place: Place) -> str:
    return f"{place.request}.{place.piece}"


def _amount_view(amount: Amount) -> AmountView:
    return AmountView(slot_seconds=f"{amount.slot_seconds:f}", price=f"{amount.price:f}")


def _group_view(total: Total) -> GroupView:
    return GroupView(key=total.key, amount=_amount_view(total.amount), entries=total.entries)


def _entry_view(entry: Entry) -> EntryView:
    return EntryView(
        kind=entry.kind,
        allocation_id=entry.allocation_id,
        project=entry.project,
        sku=entry.sku,
        sku_version=entry.sku_version,
        price_per_hour=f"{entry.price_per_hour:f}",
        slot_count=entry.slot_count,
        labels=entry.labels,
        starts_at=entry.starts_at,
        ends_at=entry.ends_at,
        running=entry.running,
        amount=_amount_view(entry.amount),
        events=[
            SourceView(position=each.position, id=each.event_id, type=each.type) for each in entry.events
        ],
    )
