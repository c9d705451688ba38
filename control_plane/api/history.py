"""`/v1/history`: what was true of something, what changed between two places in the past, who did it and why (LED-8).

The state of a thing is the view that the present has of it, so that then and now compare field by field.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from enum import StrEnum
from typing import assert_never

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.api.access import Admin
from control_plane.api.at import At, From, To, refuse_backwards, say, stretch_of, travel_of
from control_plane.api.pages import Limit
from control_plane.api.problems import PROBLEMS
from control_plane.api.subjects import OneAllocation, OneClaim, OneRow, State, Step, Subject
from control_plane.api.views import past_node_view, slot_view
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

router = APIRouter(prefix="/v1/history", tags=["history"], responses=PROBLEMS)


class Kind(StrEnum):
    """`address` is a MAC or an IPv4 address of a slot; `mapping` the value of an ingress mapping's claim; `device` is
    `<node>/<PCI address>`.
    """

    ALLOCATION = "allocation"
    SLOT = "slot"
    NODE = "node"
    ADDRESS = "address"
    MAPPING = "mapping"
    DEVICE = "device"


class PlaceView(BaseModel):
    """A place in the log; `cursor` and `time` are those of the last event up to there, null before the first."""

    position: int
    cursor: str | None
    time: datetime | None


class HistoryView(BaseModel):
    """`state` is null where the thing was not there yet."""

    kind: Kind
    name: str
    at: PlaceView
    state: State | None


class FieldView(BaseModel):
    """A field that an event changed; `path` is a JSON pointer (RFC 6901) into the state, null is not there."""

    path: str
    before: str | int | float | bool | None
    after: str | int | float | bool | None


class ChangeView(BaseModel):
    """One event that concerns the thing: what happened, who caused it and why, and what it changed."""

    position: int
    time: datetime
    observed_at: datetime
    type: str
    stream: str
    actor: str
    why: str
    correlation_id: str
    fields: list[FieldView]


class ChangesView(BaseModel):
    """What was true at `from` and at `to`, and every event between that concerns it, in order. When there are more than
    were asked for, `next_from` is where to go on.
    """

    kind: Kind
    name: str
    from_: PlaceView = Field(serialization_alias="from")
    to: PlaceView
    before: State | None
    after: State | None
    changes: list[ChangeView]
    next_from: str | None


@router.get("/{kind}/{name:path}/changes")
async def changes(
    request: Request,
    _principal: Admin,
    kind: Kind,
    name: str,
    *,
    from_: From = None,
    to: To = None,
    limit: Limit = 200,
) -> ChangesView:
    """What changed between two places in the past, who did it and why."""
    subject = _subject(kind, name)
    wanted = stretch_of(from_, to)
    async with travel_of(request).to(*wanted, known_to=subject.known_to) as (conn, [start, end]):
        refuse_backwards(start.position, end.position)
        before = await subject.at(conn, start.position)
        after = await subject.at(conn, end.position)
        if before is None and after is None and not await _ever(request, conn, subject):
            raise _unknown(kind, name, end.position)
        found = await subject.steps(conn, start.position, end.position, limit)
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


@router.get("/{kind}/{name:path}")
async def show(
    request: Request, response: Response, _principal: Admin, *, kind: Kind, name: str, at: At = None
) -> HistoryView:
    """What was true at a place in the past, or is now by the ledger alone. A slot's name holds a `/`, as `lab-a/0`."""
    subject = _subject(kind, name)
    async with travel_of(request).to(at, known_to=subject.known_to) as (conn, [place]):
        state = await subject.at(conn, place.position)
        if state is None and not await _ever(request, conn, subject):
            raise _unknown(kind, name, place.position)
    say(response, place)
    return HistoryView(kind=kind, name=name, at=_place(place), state=state)


async def _ever(request: Request, conn: AsyncConnection, subject: Subject) -> bool:
    """Whether it is there by now: what came later has a past too, though an empty one."""
    return await subject.at(conn, travel_of(request).final) is not None


def _subject(kind: Kind, name: str) -> Subject:
    """Raises `UnknownName` for a name that nothing of its kind could have."""
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
            case Kind.MAPPING:
                return OneClaim("mapping", mapping(name))
            case Kind.DEVICE:
                return OneClaim("device", device(name))
            case _:
                assert_never(kind)
    except InvalidValue as invalid:
        raise UnknownName(Objection(f"unknown_{kind}", str(invalid))) from None


def _unknown(kind: Kind, name: str, position: Position) -> UnknownName:
    why = {
        Kind.ADDRESS: f"up to position {position} {name} was reserved for no slot",
        Kind.DEVICE: f"up to position {position} PCI device {name} was granted to no slot",
        Kind.MAPPING: f"up to position {position} there was no ingress mapping {name}",
    }.get(kind, f"up to position {position} there was no {kind} {name}")
    return UnknownName(Objection(f"unknown_{kind}", why))


def _place(place: Place) -> PlaceView:
    last = place.last
    return PlaceView(
        position=place.position,
        cursor=None if last is None else str(last.cursor),
        time=None if last is None else last.recorded_at,
    )


def _changes(before: State | None, steps: Iterable[Step]) -> Iterator[ChangeView]:
    stood = _fields(before)
    for event, after in steps:
        stands = _fields(after)
        cause = event.cause
        yield ChangeView(
            position=event.position,
            time=event.recorded_at,
            observed_at=cause.observed_at,
            type=name_of(event.fact),
            stream=event.stream,
            actor=cause.actor,
            why=cause.why,
            correlation_id=str(cause.correlation_id),
            fields=[FieldView(**each._asdict()) for each in differences(stood, stands)],
        )
        stood = stands


def _fields(state: State | None) -> Json:
    return None if state is None else state.model_dump(mode="json")
