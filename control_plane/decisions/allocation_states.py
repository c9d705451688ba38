"""The states of an allocation, and the transitions that facts cause.

    waiting -> placed                                        (or released or failed at once: it has no slots)
    placed -> provisioning -> active -> stopping -> stopped
                                | ^  ^                 |
                                v |  |                 |
                              starting  <--------------+     (interrupted or stopped, and starting again)

    placed or provisioning -> placed                         (on another node, once; see `Former`)
    any of these -> releasing -> released
    any of these -> failed                                   (slots are emptied; the allocation stays failed)

Only `evolve` interprets facts and only the decisions in `allocation` create them, so the stored facts and the derived
state cannot diverge.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Literal, assert_never, get_args

from control_plane.decisions.first_release import implied_specification, with_check
from events.allocations import (
    AllocationActivated,
    AllocationDequeued,
    AllocationFact,
    AllocationFailed,
    AllocationPlaced,
    AllocationQueued,
    AllocationReleased,
    AllocationReleasing,
    AllocationReplaced,
    AllocationRequested,
    AllocationSpecified,
    AllocationStarting,
    AllocationStopped,
    AllocationStopping,
    LeaseEnded,
    LeaseExpired,
    LeaseExpiring,
    LeaseGranted,
    LeaseRenewed,
    PlacedSlot,
    ReadinessCheckSet,
    ReleaseOverdue,
    SliceAddressObserved,
    SliceInterrupted,
    SliceReady,
    SliceRemovalIncomplete,
    SliceRemovalOverridden,
    SliceRemovalRetried,
    SliceRemoved,
    SliceStarting,
    SliceStopped,
)
from events.facts import Reason
from events.ingress import IngressFact, IngressReserved, IngressWithdrawn
from events.values import SlotId


@dataclass(frozen=True, slots=True)
class Lease:
    granted_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Former:
    """Slots of an allocation's earlier placements, in which its slices failed to come up. Slots in `remaining` are
    not proved empty yet.
    """

    slots: tuple[PlacedSlot, ...] = ()
    remaining: frozenset[SlotId] = frozenset()

    def without(self, slot: SlotId) -> "Former":
        return replace(self, remaining=self.remaining - {slot})


_NONE: Final = Former()


@dataclass(frozen=True, slots=True)
class Requested:
    """State of an allocation that is requested, and neither placed nor queued. It exists only within the append that
    also places or queues it.
    """

    request: AllocationRequested
    specification: AllocationSpecified | None = None
    """Entries of the catalogue that the allocation uses. None before `allocation.specified`, which follows the request,
    and in histories of the first release, which do not contain it.
    """


@dataclass(frozen=True, slots=True)
class Waiting:
    """State of an allocation that waits for capacity. It has no slots. `dequeued` is true only within the append that
    ends the wait.
    """

    request: AllocationRequested
    specification: AllocationSpecified
    queued: AllocationQueued
    dequeued: bool = False
    slots: tuple[PlacedSlot, ...] = ()
    former: Former = _NONE


@dataclass(frozen=True, slots=True)
class Provisioning:
    """State of an allocation with claimed slots, while its slices are being created. `started` and `ready` are
    the slots in which a slice has started or is ready.
    """

    request: AllocationRequested
    specification: AllocationSpecified
    slots: tuple[PlacedSlot, ...]
    deadline: datetime
    started: frozenset[SlotId] = frozenset()
    ready: frozenset[SlotId] = frozenset()
    former: Former = _NONE


@dataclass(frozen=True, slots=True)
class Active:
    request: AllocationRequested
    specification: AllocationSpecified
    slots: tuple[PlacedSlot, ...]
    lease: Lease | None = None
    """None only between the activation and the grant of the lease in the same append."""
    former: Former = _NONE


@dataclass(frozen=True, slots=True)
class Starting:
    """State of an allocation that was active and then interrupted or stopped, and starts again. The slices in the
    slots `down` are not ready again yet.
    """

    request: AllocationRequested
    specification: AllocationSpecified
    slots: tuple[PlacedSlot, ...]
    lease: Lease | None
    down: frozenset[SlotId]
    deadline: datetime
    former: Former = _NONE


@dataclass(frozen=True, slots=True)
class Stopping:
    """State of an allocation while its slices are being stopped. The slices in the slots `on` are not proved to be off
    yet.
    """

    request: AllocationRequested
    specification: AllocationSpecified
    slots: tuple[PlacedSlot, ...]
    lease: Lease | None
    on: frozenset[SlotId]
    deadline: datetime
    former: Former = _NONE


@dataclass(frozen=True, slots=True)
class Stopped:
    """State of an allocation with all slices off. It keeps its slots and addresses until it ends."""

    request: AllocationRequested
    specification: AllocationSpecified
    slots: tuple[PlacedSlot, ...]
    lease: Lease | None
    former: Former = _NONE


@dataclass(frozen=True, slots=True)
class Releasing:
    """State of an allocation that is being released. The slots in `remaining`, which include slots of earlier
    placements, are still being emptied. `overdue` is set once their deadline has passed.
    """

    request: AllocationRequested
    specification: AllocationSpecified
    slots: tuple[PlacedSlot, ...]
    lease: Lease | None
    reason: Reason
    remaining: frozenset[SlotId]
    former: Former = _NONE
    overdue: ReleaseOverdue | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """State of a failed allocation, which is final for its caller. The slots in `remaining`, which include slots of
    earlier placements, are still being emptied. `overdue` is set once their deadline has passed.
    """

    request: AllocationRequested
    specification: AllocationSpecified
    slots: tuple[PlacedSlot, ...]
    lease: Lease | None
    reason: Reason
    remaining: frozenset[SlotId]
    former: Former = _NONE
    overdue: ReleaseOverdue | None = None


@dataclass(frozen=True, slots=True)
class Released:
    request: AllocationRequested
    specification: AllocationSpecified
    slots: tuple[PlacedSlot, ...]
    lease: Lease | None
    reason: Reason
    former: Former = _NONE


Living = Provisioning | Active | Starting | Stopping | Stopped
Placed = Living | Releasing | Failed | Released
Accepted = Waiting | Placed
"""States of an allocation after the append that creates it."""
Allocation = Requested | Accepted
DesiredStateFact = (
    AllocationPlaced
    | AllocationReplaced
    | AllocationStopping
    | AllocationStarting
    | AllocationReleasing
    | AllocationFailed
)
"""Facts that change the desired state of all slots of an allocation."""
SlotDesiredStateFact = SliceRemovalRetried | IngressReserved | IngressWithdrawn
"""Facts that change the desired state of one slot."""
AnyDesiredStateFact = DesiredStateFact | SlotDesiredStateFact
"""Facts that change desired state. The position of such a fact identifies the orders that result from it."""
_NOTES: Final = (
    SliceStarting,
    SliceAddressObserved,
    SliceRemovalIncomplete,
    SliceRemovalRetried,
    LeaseExpiring,
    LeaseExpired,
    LeaseEnded,
    *get_args(IngressFact),
)
"""Facts that do not change the state."""


def slot_ids(slots: tuple[PlacedSlot, ...]) -> frozenset[SlotId]:
    return frozenset(slot.slot_id for slot in slots)


def evolve(state: Allocation | None, fact: AllocationFact) -> Allocation:
    """Return the allocation's state after a fact. Raises `AssertionError` on a history that no command can create."""
    following = _after(state, fact)
    if following is None and state is not None and isinstance(fact, _NOTES):
        return state
    assert following is not None, f"{type(fact).__name__} cannot follow {type(state).__name__}"
    return following


def _after(state: Allocation | None, fact: AllocationFact) -> Allocation | None:
    """Return an allocation's state after a fact, or None if the fact does not change it."""
    match state:
        case None:
            return Requested(fact) if isinstance(fact, AllocationRequested) else None
        case Requested() | Waiting():
            return _before_placement(state, fact)
        case Provisioning():
            return _after_provisioning(state, fact) or _after_end(state, fact)
        case Active():
            return _after_active(state, fact) or _after_end(state, fact)
        case Starting():
            return _after_starting(state, fact) or _after_end(state, fact)
        case Stopping():
            return _after_stopping(state, fact) or _after_end(state, fact)
        case Stopped():
            return _after_stopped(state, fact) or _after_end(state, fact)
        case Releasing() | Failed():
            return _after_removal(state, fact)
        case Released():
            return None
        case _:
            assert_never(state)


def _before_placement(state: Requested | Waiting, fact: AllocationFact) -> Allocation | None:
    return _after_waiting(state, fact) if isinstance(state, Waiting) else _after_request(state, fact)


def _after_request(state: Requested, fact: AllocationFact) -> Allocation | None:
    match fact:
        case AllocationSpecified():
            return replace(state, specification=fact)
        case ReadinessCheckSet():
            return replace(state, specification=with_check(_specification(state), fact))
        case AllocationPlaced(slots=slots, deadline=deadline):
            return Provisioning(state.request, _specification(state), slots, deadline)
        case AllocationQueued():
            return Waiting(state.request, _specification(state), fact)
        case _:
            return None


def _after_waiting(state: Waiting, fact: AllocationFact) -> Allocation | None:
    nothing: frozenset[SlotId] = frozenset()
    match fact:
        case AllocationDequeued():
            return replace(state, dequeued=True)
        case AllocationPlaced(slots=slots, deadline=deadline):
            return Provisioning(state.request, state.specification, slots, deadline)
        case AllocationReleasing(reason=reason):
            return Releasing(state.request, state.specification, (), None, reason, nothing)
        case AllocationFailed(reason=reason):
            return Failed(state.request, state.specification, (), None, reason, nothing)
        case _:
            return None


def _specification(state: Requested) -> AllocationSpecified:
    return state.specification or implied_specification(state.request)


def _after_provisioning(state: Provisioning, fact: AllocationFact) -> Allocation | None:
    match fact:
        case SliceStarting(slot_id=slot):
            return replace(state, started=state.started | {slot})
        case SliceReady(slot_id=slot):
            return replace(state, ready=state.ready | {slot})
        case AllocationReplaced(slots=slots, deadline=deadline):
            left = slot_ids(state.slots) | state.former.remaining
            return Provisioning(
                state.request,
                state.specification,
                slots,
                deadline,
                former=Former((*state.former.slots, *state.slots), left),
            )
        case AllocationActivated():
            return Active(state.request, state.specification, state.slots, former=state.former)
        case _:
            return None


def _after_active(state: Active, fact: AllocationFact) -> Allocation | None:
    match fact:
        case LeaseGranted(granted_at=granted_at, expires_at=expires_at):
            return replace(state, lease=Lease(granted_at, expires_at))
        case SliceInterrupted(slot_id=slot, deadline=deadline):
            down = frozenset({slot})
            return Starting(
                state.request, state.specification, state.slots, state.lease, down, deadline, state.former
            )
        case AllocationStopping(deadline=deadline):
            return _stopping(state, deadline)
        case _:
            return None


def _after_starting(state: Starting, fact: AllocationFact) -> Allocation | None:
    match fact:
        case SliceInterrupted(slot_id=slot):
            return replace(state, down=state.down | {slot})
        case SliceReady(slot_id=slot):
            return replace(state, down=state.down - {slot})
        case AllocationActivated():
            return Active(state.request, state.specification, state.slots, state.lease, state.former)
        case AllocationStopping(deadline=deadline):
            return _stopping(state, deadline)
        case _:
            return None


def _stopping(state: Active | Starting, deadline: datetime) -> Stopping:
    return Stopping(
        state.request,
        state.specification,
        state.slots,
        state.lease,
        slot_ids(state.slots),
        deadline,
        state.former,
    )


def _after_stopping(state: Stopping, fact: AllocationFact) -> Allocation | None:
    match fact:
        case SliceStopped(slot_id=slot):
            return replace(state, on=state.on - {slot})
        case AllocationStopped():
            return Stopped(state.request, state.specification, state.slots, state.lease, state.former)
        case _:
            return None


def _after_stopped(state: Stopped, fact: AllocationFact) -> Allocation | None:
    match fact:
        case AllocationStarting(deadline=deadline):
            down = slot_ids(state.slots)
            return Starting(
                state.request, state.specification, state.slots, state.lease, down, deadline, state.former
            )
        case _:
            return None


def _after_end(state: Living, fact: AllocationFact) -> Allocation | None:
    """Return the state of an allocation after one of the facts that are possible in every state before its end: its
    release begins, it fails, its lease is renewed, or a slot of an earlier placement is empty. None for any other fact.
    """
    remaining, former = slot_ids(state.slots) | state.former.remaining, Former(state.former.slots)
    match fact:
        case AllocationReleasing(reason=reason):
            return Releasing(
                state.request, state.specification, state.slots, lease_of(state), reason, remaining, former
            )
        case AllocationFailed(reason=reason):
            return Failed(
                state.request, state.specification, state.slots, lease_of(state), reason, remaining, former
            )
        case SliceRemoved(slot_id=slot) | SliceRemovalOverridden(slot_id=slot) if (
            slot in state.former.remaining
        ):
            return replace(state, former=state.former.without(slot))
        case LeaseRenewed(expires_at=expires_at) if not isinstance(state, Provisioning):
            assert state.lease is not None, "only a lease that was granted can be renewed"
            return replace(state, lease=Lease(state.lease.granted_at, expires_at))
        case _:
            return None


def _after_removal(state: Releasing | Failed, fact: AllocationFact) -> Allocation | None:
    match state, fact:
        case _, SliceRemoved(slot_id=slot) | SliceRemovalOverridden(slot_id=slot):
            return replace(state, remaining=state.remaining - {slot})
        case _, ReleaseOverdue():
            return replace(state, overdue=fact)
        case Releasing(reason=reason), AllocationReleased():
            return Released(
                state.request, state.specification, state.slots, state.lease, reason, state.former
            )
        case _:
            return None


def awaiting_proof(state: Allocation) -> frozenset[SlotId]:
    """Return those slots of an allocation that are being emptied and that their node has not proved empty yet."""
    match state:
        case Provisioning() | Active() | Starting() | Stopping() | Stopped():
            return state.former.remaining
        case Releasing(remaining=remaining) | Failed(remaining=remaining):
            return remaining
        case Requested() | Waiting() | Released():
            return frozenset()
        case _:
            assert_never(state)


def lease_of(state: Accepted) -> Lease | None:
    """Return an allocation's lease, or None before the allocation first became active."""
    return None if isinstance(state, Waiting | Provisioning) else state.lease


def end_of_lease(state: Active | Starting | Stopping | Stopped) -> datetime:
    """Return the time at which an allocation's lease expires and the allocation is released."""
    assert state.lease is not None, "an activated allocation must have a lease"
    return state.lease.expires_at


def fold(facts: tuple[AllocationFact, ...]) -> Allocation | None:
    state: Allocation | None = None
    for fact in facts:
        state = evolve(state, fact)
    return state


StateName = Literal[
    "requested",
    "waiting",
    "placed",
    "provisioning",
    "active",
    "starting",
    "stopping",
    "stopped",
    "releasing",
    "failed",
    "released",
]


def state_name(state: Allocation) -> StateName:
    """Return the name of an allocation's state as defined by requirement ALC-8."""
    match state:
        case Requested() | Waiting():
            return "waiting" if isinstance(state, Waiting) else "requested"
        case Provisioning(started=started):
            return "provisioning" if started else "placed"
        case Active():
            return "active"
        case Starting():
            return "starting"
        case Stopping():
            return "stopping"
        case Stopped():
            return "stopped"
        case Releasing():
            return "releasing"
        case Failed():
            return "failed"
        case Released():
            return "released"
        case _:
            assert_never(state)


def ready_slots(state: Accepted) -> frozenset[SlotId]:
    """Return the slots of an allocation in which the slice is ready."""
    match state:
        case Provisioning(ready=ready):
            return ready
        case Active(slots=slots):
            return slot_ids(slots)
        case Starting(slots=slots, down=down):
            return slot_ids(slots) - down
        case Waiting() | Stopping() | Stopped() | Releasing() | Failed() | Released():
            return frozenset()
        case _:
            assert_never(state)
