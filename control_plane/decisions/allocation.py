"""The life of an allocation: its states, how facts change them, and what each command decides.

    placed -> provisioning -> active -> releasing -> released
                   |            | ^
                   |            v |
                   |          starting        (a running slice was interrupted and comes back)
                   v            |
                 failed  <------+             (slots are emptied; the allocation stays failed)

Only `decide` functions make facts and only `evolve` reads them, so what is stored and what is believed cannot
part. A slot is given back by a fact of its own stream, recorded in the same append as the allocation's.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, assert_never

from control_plane.decisions.refusals import Conflict, Objection
from events.allocations import (
    AllocationActivated,
    AllocationFact,
    AllocationFailed,
    AllocationPlaced,
    AllocationReleased,
    AllocationReleasing,
    AllocationRequested,
    LeaseEnded,
    LeaseExpired,
    LeaseGranted,
    PlacedSlot,
    SliceAddressObserved,
    SliceInterrupted,
    SliceReady,
    SliceRemovalUnproved,
    SliceRemoved,
    SliceStarting,
)
from events.facts import Reason
from events.values import SlotId


@dataclass(frozen=True, slots=True)
class Lease:
    granted_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Requested:
    """Lasts only within the append that also places it."""

    request: AllocationRequested


@dataclass(frozen=True, slots=True)
class Provisioning:
    """Slots are claimed and being made; `started` and `ready` say how far each is."""

    request: AllocationRequested
    slots: tuple[PlacedSlot, ...]
    deadline: datetime
    started: frozenset[SlotId] = frozenset()
    ready: frozenset[SlotId] = frozenset()


@dataclass(frozen=True, slots=True)
class Active:
    request: AllocationRequested
    slots: tuple[PlacedSlot, ...]
    lease: Lease | None = None
    """None only between activation and the grant that follows it in the same append."""


@dataclass(frozen=True, slots=True)
class Starting:
    """Was active; `down` are the slots whose slice is not back yet."""

    request: AllocationRequested
    slots: tuple[PlacedSlot, ...]
    lease: Lease | None
    down: frozenset[SlotId]
    deadline: datetime


@dataclass(frozen=True, slots=True)
class Releasing:
    request: AllocationRequested
    slots: tuple[PlacedSlot, ...]
    lease: Lease | None
    reason: Reason
    remaining: frozenset[SlotId]


@dataclass(frozen=True, slots=True)
class Failed:
    """Final for the caller; `remaining` slots are still being emptied."""

    request: AllocationRequested
    slots: tuple[PlacedSlot, ...]
    lease: Lease | None
    reason: Reason
    remaining: frozenset[SlotId]


@dataclass(frozen=True, slots=True)
class Released:
    request: AllocationRequested
    slots: tuple[PlacedSlot, ...]
    lease: Lease | None
    reason: Reason


Placed = Provisioning | Active | Starting | Releasing | Failed | Released
Allocation = Requested | Placed
Living = Provisioning | Active | Starting
_NOTES: Final = (SliceStarting, SliceAddressObserved, SliceRemovalUnproved, LeaseExpired, LeaseEnded)
"""Facts that tell something and move nothing."""


def slot_ids(slots: tuple[PlacedSlot, ...]) -> frozenset[SlotId]:
    return frozenset(slot.slot_id for slot in slots)


def evolve(state: Allocation | None, fact: AllocationFact) -> Allocation:
    """The state after a fact. Raises `AssertionError` on a history that no decision could have made."""
    following = _after(state, fact)
    if following is None and state is not None and isinstance(fact, _NOTES):
        return state
    assert following is not None, f"{type(fact).__name__} cannot follow {type(state).__name__}"
    return following


def _after(state: Allocation | None, fact: AllocationFact) -> Allocation | None:
    """The next state, or None when the fact moves nothing."""
    match state:
        case None:
            return Requested(fact) if isinstance(fact, AllocationRequested) else None
        case Requested(request):
            return (
                Provisioning(request, fact.slots, fact.deadline)
                if isinstance(fact, AllocationPlaced)
                else None
            )
        case Provisioning():
            return _after_provisioning(state, fact) or _after_end(state, fact)
        case Active():
            return _after_active(state, fact) or _after_end(state, fact)
        case Starting():
            return _after_starting(state, fact) or _after_end(state, fact)
        case Releasing() | Failed():
            return _after_removal(state, fact)
        case Released():
            return None
        case _:
            assert_never(state)


def _after_provisioning(state: Provisioning, fact: AllocationFact) -> Allocation | None:
    match fact:
        case SliceStarting(slot_id=slot):
            return replace(state, started=state.started | {slot})
        case SliceReady(slot_id=slot):
            return replace(state, ready=state.ready | {slot})
        case AllocationActivated():
            return Active(state.request, state.slots)
        case _:
            return None


def _after_active(state: Active, fact: AllocationFact) -> Allocation | None:
    match fact:
        case LeaseGranted(granted_at=granted_at, expires_at=expires_at):
            return replace(state, lease=Lease(granted_at, expires_at))
        case SliceInterrupted(slot_id=slot, deadline=deadline):
            return Starting(state.request, state.slots, state.lease, frozenset({slot}), deadline)
        case _:
            return None


def _after_starting(state: Starting, fact: AllocationFact) -> Allocation | None:
    match fact:
        case SliceInterrupted(slot_id=slot):
            return replace(state, down=state.down | {slot})
        case SliceReady(slot_id=slot):
            return replace(state, down=state.down - {slot})
        case AllocationActivated():
            return Active(state.request, state.slots, state.lease)
        case _:
            return None


def _after_end(state: Living, fact: AllocationFact) -> Allocation | None:
    match fact:
        case AllocationReleasing(reason=reason):
            return Releasing(state.request, state.slots, _lease(state), reason, slot_ids(state.slots))
        case AllocationFailed(reason=reason):
            return Failed(state.request, state.slots, _lease(state), reason, slot_ids(state.slots))
        case _:
            return None


def _after_removal(state: Releasing | Failed, fact: AllocationFact) -> Allocation | None:
    match state, fact:
        case _, SliceRemoved(slot_id=slot):
            return replace(state, remaining=state.remaining - {slot})
        case Releasing(request, slots, lease, reason), AllocationReleased():
            return Released(request, slots, lease, reason)
        case _:
            return None


def _lease(state: Living) -> Lease | None:
    return None if isinstance(state, Provisioning) else state.lease


def fold(facts: tuple[AllocationFact, ...]) -> Allocation | None:
    state: Allocation | None = None
    for fact in facts:
        state = evolve(state, fact)
    return state


def state_name(state: Allocation) -> str:
    """The word of ALC-8 for a state."""
    match state:
        case Requested():
            return "requested"
        case Provisioning(started=started):
            return "provisioning" if started else "placed"
        case Active():
            return "active"
        case Starting():
            return "starting"
        case Releasing():
            return "releasing"
        case Failed():
            return "failed"
        case Released():
            return "released"
        case _:
            assert_never(state)


def ready_slots(state: Placed) -> frozenset[SlotId]:
    """Slots whose slice can be used now."""
    match state:
        case Provisioning(ready=ready):
            return ready
        case Active(slots=slots):
            return slot_ids(slots)
        case Starting(slots=slots, down=down):
            return slot_ids(slots) - down
        case Releasing() | Failed() | Released():
            return frozenset()
        case _:
            assert_never(state)


def release(state: Allocation, reason: Reason) -> tuple[AllocationFact, ...]:
    """Asked twice, nothing new happens; a failed allocation has nothing left to release."""
    match state:
        case Provisioning() | Active() | Starting():
            return _ending(state, AllocationReleasing(state.request.allocation_id, reason))
        case Releasing() | Released():
            return ()
        case Failed():
            raise Conflict(
                Objection(
                    "already_failed", "the allocation failed and its slots are given back by themselves"
                )
            )
        case Requested():
            raise AssertionError("a request is placed in the append that records it")
        case _:
            assert_never(state)


def expire(state: Allocation, now: datetime) -> tuple[AllocationFact, ...]:
    """The lease ran out: the allocation is released. Anything but an overdue lease decides nothing."""
    match state:
        case Active(lease=Lease(expires_at=end)) | Starting(lease=Lease(expires_at=end)) if end <= now:
            allocation = state.request.allocation_id
            reason = Reason("lease_expired", f"the lease ended at {end.isoformat()}")
            return LeaseExpired(allocation), *_ending(state, AllocationReleasing(allocation, reason))
        case _:
            return ()


def fail(state: Allocation, reason: Reason) -> tuple[AllocationFact, ...]:
    """Only a living allocation can fail; for the others the news comes too late to matter."""
    match state:
        case Provisioning() | Active() | Starting():
            return _ending(state, AllocationFailed(state.request.allocation_id, reason))
        case _:
            return ()


def miss_deadline(state: Allocation, now: datetime) -> tuple[AllocationFact, ...]:
    match state:
        case Provisioning(deadline=deadline, ready=up) if deadline <= now:
            waited = slot_ids(state.slots) - up
        case Starting(deadline=deadline, down=waited) if deadline <= now:
            pass
        case _:
            return ()
    names = ", ".join(sorted(waited))
    return fail(state, Reason("deadline_missed", f"not ready by {deadline.isoformat()}: {names}"))


def _ending(state: Living, end: AllocationReleasing | AllocationFailed) -> tuple[AllocationFact, ...]:
    leased = _lease(state) is not None
    return (end, LeaseEnded(end.allocation_id)) if leased else (end,)


def start_slice(state: Allocation, slot: SlotId) -> tuple[AllocationFact, ...]:
    match state:
        case Provisioning(started=started) if slot in slot_ids(state.slots) - started:
            return (SliceStarting(state.request.allocation_id, slot),)
        case Starting(down=down) if slot in down:
            return (SliceStarting(state.request.allocation_id, slot),)
        case _:
            return ()


def observe_address(state: Allocation, seen: SliceAddressObserved) -> tuple[AllocationFact, ...]:
    """Evidence is kept while the allocation lives; the node sends it only when it changed."""
    match state:
        case Provisioning() | Active() | Starting() if seen.slot_id in slot_ids(state.slots):
            return (seen,)
        case _:
            return ()


def slice_ready(state: Allocation, ready: SliceReady, now: datetime) -> tuple[AllocationFact, ...]:
    """The last slice to be ready makes the allocation active; the first time, that also grants the lease."""
    allocation = ready.allocation_id
    match state:
        case Provisioning(request=request, ready=up) if ready.slot_id in slot_ids(state.slots) - up:
            if up | {ready.slot_id} < slot_ids(state.slots):
                return (ready,)
            end = now + timedelta(seconds=request.lease_seconds)
            return ready, AllocationActivated(allocation), LeaseGranted(allocation, now, end)
        case Starting(down=down) if ready.slot_id in down:
            return (ready,) if down - {ready.slot_id} else (ready, AllocationActivated(allocation))
        case _:
            return ()


def interrupt_slice(state: Allocation, interrupted: SliceInterrupted) -> tuple[AllocationFact, ...]:
    match state:
        case Active() if interrupted.slot_id in slot_ids(state.slots):
            return (interrupted,)
        case Starting(down=down, deadline=deadline) if interrupted.slot_id in slot_ids(state.slots) - down:
            return (
                SliceInterrupted(
                    interrupted.allocation_id, interrupted.slot_id, interrupted.reason, deadline
                ),
            )
        case _:
            return ()


def slice_removed(state: Allocation, slot: SlotId) -> tuple[AllocationFact, ...]:
    """The last proof of absence ends a release. Told twice, the second changes nothing."""
    match state:
        case Releasing(remaining=remaining) if slot in remaining:
            removed = SliceRemoved(state.request.allocation_id, slot)
            if remaining - {slot}:
                return (removed,)
            return removed, AllocationReleased(state.request.allocation_id)
        case Failed(remaining=remaining) if slot in remaining:
            return (SliceRemoved(state.request.allocation_id, slot),)
        case _:
            return ()


def slice_remains(state: Allocation, unproved: SliceRemovalUnproved) -> tuple[AllocationFact, ...]:
    match state:
        case Releasing(remaining=remaining) | Failed(remaining=remaining) if unproved.slot_id in remaining:
            return (unproved,)
        case _:
            return ()


def is_news(history: tuple[AllocationFact, ...], fact: SliceAddressObserved | SliceRemovalUnproved) -> bool:
    """Whether a node's observation differs from the last of its kind that was recorded for the slot."""
    before = (said for said in reversed(history) if type(said) is type(fact) and said.slot_id == fact.slot_id)
    return next(before, None) != fact
