"""The states of a slot: discovered -> free -> claimed -> releasing (-> quarantined) -> free, and free <-> retired.

Each state carries only its own data. The union of the states is closed: every match on it ends in `assert_never`, so
that code that does not handle a state fails the type check. Rows store a state as its name, its holder and its reason.
"""

from dataclasses import dataclass
from typing import Literal, assert_never

from events.facts import Reason
from events.values import AllocationId

SlotStateName = Literal["discovered", "free", "claimed", "releasing", "quarantined", "retired"]
"""The name of a slot's state, as stored in rows and shown in views."""


@dataclass(frozen=True, slots=True)
class Discovered:
    """The node reported the slot, and no administrator has approved it yet."""


@dataclass(frozen=True, slots=True)
class Free:
    """The slot is approved, and no allocation holds it."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """The allocation `by` holds the slot."""

    by: AllocationId


@dataclass(frozen=True, slots=True)
class Releasing:
    """The desired state of the slot is empty, and its node has not proved yet that the slice of allocation `by` is
    removed.
    """

    by: AllocationId


@dataclass(frozen=True, slots=True)
class Quarantined:
    """The node still finds remains of the slice of the allocation `by` in the slot, or did not prove in time that it is
    empty; `reason` describes the remains or the cause.
    """

    by: AllocationId
    reason: Reason | None


@dataclass(frozen=True, slots=True)
class Retired:
    """An administrator retired the slot with this reason. Nothing is placed in it until it is approved again."""

    reason: Reason | None


SlotState = Discovered | Free | Claimed | Releasing | Quarantined | Retired


def slot_state(name: SlotStateName, holder: AllocationId | None, reason: Reason | None) -> SlotState:
    """Return the state of a slot that a row stores. Raises `ValueError` if a state that needs a holder has none."""
    match name:
        case "discovered":
            return Discovered()
        case "free":
            return Free()
        case "claimed":
            return Claimed(_holder(name, holder))
        case "releasing":
            return Releasing(_holder(name, holder))
        case "quarantined":
            return Quarantined(_holder(name, holder), reason)
        case "retired":
            return Retired(reason)
        case _:
            assert_never(name)


def _holder(name: SlotStateName, holder: AllocationId | None) -> AllocationId:
    if holder is None:
        raise ValueError(
            f"the read model is damaged: the row of a {name} slot names no allocation; rebuild the read model"
        )
    return holder


def slot_state_name(state: SlotState) -> SlotStateName:
    """Return the name of a slot's state, as rows store it and the API shows it."""
    match state:
        case Discovered():
            return "discovered"
        case Free():
            return "free"
        case Claimed():
            return "claimed"
        case Releasing():
            return "releasing"
        case Quarantined():
            return "quarantined"
        case Retired():
            return "retired"
        case _:
            assert_never(state)


def holder_of(state: SlotState) -> AllocationId | None:
    """Return the allocation that holds the slot, or that left a slice in it which is not proved removed yet; None if
    there is none.
    """
    match state:
        case Claimed(by=by) | Releasing(by=by) | Quarantined(by=by):
            return by
        case Discovered() | Free() | Retired():
            return None
        case _:
            assert_never(state)


def reason_of(state: SlotState) -> Reason | None:
    """Return why the slot is quarantined or retired; None if it is neither."""
    match state:
        case Quarantined(reason=reason) | Retired(reason=reason):
            return reason
        case Discovered() | Free() | Claimed() | Releasing():
            return None
        case _:
            assert_never(state)
