"""`/v1/history`: the past state of a resource, and what changed between two positions, by which actor and why (LED-8).

Past states have the same views as present ones, so that they compare field by field.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from enum import StrEnum
from typing import assert_never

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from control_plane.api.requests.access import AuthenticatedRoute, access, caller_of
from control_plane.api.requests.as_of import (
    At,
    From,
    To,
    range_of,
    refuse_reversed_range,
    set_headers,
    travel_of,
)
from control_plane.api.requests.pages import Limit
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.routes.allocations import own_allocation
from control_plane.api.views.history_subjects import OneAllocation, OneClaim, OneRow, State, Step, Subject
from control_plane.api.views.views import past_node_view, slot_view
from control_plane.decisions.access import Scope, require
from control_plane.decisions.refusals import Objection, UnknownName
from control_plane.time_travel.differences import Json, differences
from control_plane.time_travel.holders import address, device, mapping
from control_plane.time_travel.travel import Place
from events.catalog import name_of
from events.values import (
    InvalidValue,
    Position,
    allocation_id,
    node_id,
    slot_id,
    stream_of_node,
    stream_of_slot,
)
from read_models.inline import NODES, SLOTS
from read_models.nodes import NodeRow
from read_models.slots import SlotRow

router = APIRouter(prefix="/v1/history", tags=["history"], responses=PROBLEMS, route_class=AuthenticatedRoute)


class Kind(StrEnum):
    """A kind of resource that has a history. The name of an `address` is a MAC or IPv4 address of a slot, or a public
    IPv4 address of a node; the name of an `ingress` is the value that the ingress rule claims, such as
    `tcp/203.0.113.1:29690`, and the name of a `device` is `<node>/<PCI address>`.
    """

    ALLOCATION = "allocation"
    SLOT = "slot"
    NODE = "node"
    ADDRESS = "address"
    INGRESS = "ingress"
    DEVICE = "device"


class PlaceView(BaseModel):
    """A position in the ledger; `cursor` and `time` are those of the last event up to it, null before the first."""

    position: int
    cursor: str | None
    time: datetime | None


class HistoryView(BaseModel):
    """The state of a resource at a position; `state` is null if the resource did not exist yet."""

    kind: Kind
    name: str
    at: PlaceView
    state: State | None


class FieldView(BaseModel):
    """A field that an event changed. `path` is a JSON pointer (RFC 6901) into the state. `before` or `after` is null if
    the field was absent then.
    """

    path: str
    before: str | int | float | bool | None
    after: str | int | float | bool | None


class ChangeView(BaseModel):
    """An event that concerns the resource: what happened, which actor caused it and why, and which fields changed."""

    position: int
    time: datetime
    observed_at: datetime
    type: str
    stream: str
    actor: str
    reason: str
    correlation_id: str
    fields: list[FieldView]


class ChangesView(BaseModel):
    """The state of a resource at `from` and at `to`, and the events between that concern it, in order. If `limit` cut
    off events, `next_from` is the `from` of the next request.
    """

    kind: Kind
    name: str
    from_: PlaceView = Field(serialization_alias="from")
    to: PlaceView
    before: State | None
    after: State | None
    changes: list[ChangeView]
    next_from: str | None


@router.get("/{kind}/{name:path}/changes", openapi_extra=access(Scope.EVENTS_READ))
async def changes(
    request: Request,
    kind: Kind,
    name: str,
    *,
    from_: From = None,
    to: To = None,
    limit: Limit = 200,
) -> ChangesView:
    """Return what changed between two times or positions, by which actor and why."""
    subject = await _own(request, kind, name)
    wanted = range_of(from_, to)
    async with travel_of(request).to(*wanted, known_to=subject.known_to) as (conn, [start, end]):
        refuse_reversed_range(start.position, end.position)
        before = await subject.at(conn, start.position)
        after = await subject.at(conn, end.position)
        found = await subject.steps(conn, start.position, end.position, limit)
    if before is None and after is None and not await _exists(request, subject):
        raise _unknown(kind, name, end.position)
    return ChangesView(
        kind=kind,
        name=name,
        from_=_place(start),
        to=_place(end),
        before=before,
        after=after,
        changes=list(_changes(before, found.steps)),
        next_from=None if found.reached == end.position else f"position:{found.reached}",
    )


@router.get("/{kind}/{name:path}", openapi_extra=access(Scope.EVENTS_READ))
async def show(request: Request, response: Response, *, kind: Kind, name: str, at: At = None) -> HistoryView:
    """Return the state of a resource at a past time or position, or now, from the ledger alone. A slot is named
    `lab-a/0`.
    """
    subject = await _own(request, kind, name)
    async with travel_of(request).to(at, known_to=subject.known_to) as (conn, [place]):
        state = await subject.at(conn, place.position)
    if state is None and not await _exists(request, subject):
        raise _unknown(kind, name, place.position)
    set_headers(response, place)
    return HistoryView(kind=kind, name=name, at=_place(place), state=state)


async def _exists(request: Request, subject: Subject) -> bool:
    """Return whether the resource exists now. An existing resource has the state null before its creation; an unknown
    resource is an error. Must not be called while a connection for reading is held, of which there are few.
    """
    async with travel_of(request).to(None, known_to=subject.known_to) as (conn, [now]):
        return await subject.at(conn, now.position) is not None


async def _own(request: Request, kind: Kind, name: str) -> Subject:
    """Return the resource, if the caller may read its history. Raises `UnknownName` and `Forbidden`.

    A caller that is limited to projects may read only the history of allocations in these projects.
    """
    principal = caller_of(request)
    if principal.projects is not None:
        if kind is not Kind.ALLOCATION:
            require(principal, Scope.FLEET_READ)
        await own_allocation(request, name)
    return _subject(kind, name)


def _subject(kind: Kind, name: str) -> Subject:
    """Return the resource with this kind and name. Raises `UnknownName` if the name is not valid for the kind."""
    try:
        match kind:
            case Kind.ALLOCATION:
                return OneAllocation(allocation_id(name))
            case Kind.SLOT:
                return OneRow(SLOTS, stream_of_slot(slot_id(name)), lambda row: slot_view(SlotRow(row)))
            case Kind.NODE:
                return OneRow(NODES, stream_of_node(node_id(name)), lambda row: past_node_view(NodeRow(row)))
            case Kind.ADDRESS:
                return OneClaim("address", address(name))
            case Kind.INGRESS:
                return OneClaim("ingress", mapping(name))
            case Kind.DEVICE:
                return OneClaim("device", device(name))
            case _:
                assert_never(kind)
    except InvalidValue as invalid:
        raise UnknownName(Objection(f"unknown_{kind}", str(invalid))) from None


def _unknown(kind: Kind, name: str, position: Position) -> UnknownName:
    reason = {
        Kind.ADDRESS: f"no slot or node had address {name} up to position {position}",
        Kind.DEVICE: f"no slot was granted PCI device {name} up to position {position}",
        Kind.INGRESS: f"no ingress rule {name} existed up to position {position}; the name of a rule is the value that it claims, such as tcp/203.0.113.1:29690",
    }.get(kind, f"no {kind} named {name} existed up to position {position}")
    return UnknownName(Objection(f"unknown_{kind}", reason))


def _place(place: Place) -> PlaceView:
    last = place.last
    return PlaceView(
        position=place.position,
        cursor=None if last is None else str(last.cursor),
        time=None if last is None else last.recorded_at,
    )


def _changes(before: State | None, steps: Iterable[Step]) -> Iterator[ChangeView]:
    previous = _fields(before)
    for event, after in steps:
        current = _fields(after)
        cause = event.cause
        yield ChangeView(
            position=event.position,
            time=event.recorded_at,
            observed_at=cause.observed_at,
            type=name_of(event.fact),
            stream=event.stream,
            actor=cause.actor,
            reason=cause.reason,
            correlation_id=str(cause.correlation_id),
            fields=[FieldView(**each._asdict()) for each in differences(previous, current)],
        )
        previous = current


def _fields(state: State | None) -> Json:
    return None if state is None else state.model_dump(mode="json")
