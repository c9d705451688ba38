"""Response types of `/v1/history`."""

from datetime import datetime
from enum import StrEnum

import msgspec

from control_plane.client.answers import Answer, Event, Slot


class Kind(StrEnum):
    ALLOCATION = "allocation"
    SLOT = "slot"
    NODE = "node"
    ADDRESS = "address"
    INGRESS = "ingress"
    DEVICE = "device"


class Place(Answer, frozen=True):
    """A position in the ledger; `time` is the time of the last event up to this position."""

    position: int
    time: datetime | None = None


class History(Answer, frozen=True):
    kind: Kind
    name: str
    at: Place
    state: msgspec.Raw


class Tenant(Answer, frozen=True):
    id: str
    project: str
    requested_by: str
    requested_at: datetime


class Holder(Answer, frozen=True):
    kind: str
    value: str
    since: int
    stream: str
    slot: Slot | None = None
    allocation: Tenant | None = None


class Holders(Answer, frozen=True):
    holders: tuple[Holder, ...] = ()


Value = str | int | float | bool | None


class Field(Answer, frozen=True):
    path: str
    before: Value = None
    after: Value = None


class Change(Answer, frozen=True):
    position: int
    time: datetime
    type: str
    actor: str
    reason: str
    fields: tuple[Field, ...] = ()


class Changes(Answer, frozen=True, rename={"since": "from"}):
    kind: Kind
    name: str
    since: Place
    to: Place
    before: msgspec.Raw
    changes: tuple[Change, ...] = ()
    next_from: str | None = None


class Causes(Answer, frozen=True):
    """An event with the events that led to it, the direct cause first, and those that followed from it."""

    event: Event
    causes: list[Event]
    effects: list[Event]
    others: list[Event]
    complete: bool
    """False if only the nearest of very many related events are returned."""
