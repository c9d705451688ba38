"""What each command decides about an allocation: its state in, facts or a refusal out.

A slot is given back by a fact of its own stream, recorded in the same append as the allocation's.
"""

from datetime import datetime, timedelta
from typing import assert_never

from control_plane.decisions.allocation_states import (
    Active,
    Allocation,
    Failed,
    Living,
    Provisioning,
    Released,
    Releasing,
    Requested,
    Starting,
    Stopped,
    Stopping,
    end_of_lease,
    lease_of,
    slot_ids,
    state_name,
)
from control_plane.decisions.refusals import Conflict, Objection
from events.allocations import (
    AllocationActivated,
    AllocationFact,
    AllocationFailed,
    AllocationReleased,
    AllocationReleasing,
    AllocationStarting,
    AllocationStopped,
    AllocationStopping,
    LeaseEnded,
    LeaseExpired,
    LeaseGranted,
    SliceAddressObserved,
    SliceInterrupted,
    SliceReady,
    SliceRemovalRetried,
    SliceRemovalUnproved,
    SliceRemovalWaived,
    SliceRemoved,
    SliceStarting,
    SliceStopped,
)
from events.facts import Reason
from events.values import SlotId


def release(state: Allocation, reason: Reason) -> tuple[AllocationFact, ...]:
    """Asked twice, nothing new happens; a failed allocation has nothing left to release."""
    match state:
        case Provisioning() | Active() | Starting() | Stopping() | Stopped():
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
        case (Active() | Starting() | Stopping() | Stopped()) as leased if end_of_lease(leased) <= now:
            allocation, end = leased.request.allocation_id, end_of_lease(leased)
            reason = Reason("lease_expired", f"the lease ended at {end.isoformat()}")
            return LeaseExpired(allocation), *_ending(state, AllocationReleasing(allocation, reason))
        case _:
            return ()


def fail(state: Allocation, reason: Reason) -> tuple[AllocationFact, ...]:
    """Only a living allocation can fail; for the others the news comes too late to matter."""
    match state:
        case Provisioning() | Active() | Starting() | Stopping() | Stopped():
            return _ending(state, AllocationFailed(state.request.allocation_id, reason))
        case _:
            return ()


def miss_deadline(state: Allocation, now: datetime) -> tuple[AllocationFact, ...]:
    match state:
        case Provisioning(deadline=deadline, ready=up) if deadline <= now:
            what, waited = "ready", slot_ids(state.slots) - up
        case Starting(deadline=deadline, down=waited) if deadline <= now:
            what = "ready"
        case Stopping(deadline=deadline, on=waited) if deadline <= now:
            what = "stopped"
        case _:
            return ()
    names = ", ".join(sorted(waited))
    return fail(state, Reason("deadline_missed", f"not {what} by {deadline.isoformat()}: {names}"))


def stop(state: Allocation, reason: Reason, deadline: datetime) -> tuple[AllocationFact, ...]:
    """Switch the slices off. Asked twice, nothing new happens. Raises `Conflict` where nothing is in use."""
    match state:
        case Active() | Starting():
            return (AllocationStopping(state.request.allocation_id, reason, deadline),)
        case Stopping() | Stopped():
            return ()
        case Requested() | Provisioning() | Releasing() | Released() | Failed():
            raise Conflict(_not_in_use(state, "an active allocation can be stopped"))
        case _:
            assert_never(state)


def start(state: Allocation, reason: Reason, deadline: datetime) -> tuple[AllocationFact, ...]:
    """Switch the slices of a stopped allocation on again. One that runs, or is coming back, is left as it is."""
    match state:
        case Stopped():
            return (AllocationStarting(state.request.allocation_id, reason, deadline),)
        case Active() | Starting():
            return ()
        case Requested() | Provisioning() | Stopping() | Releasing() | Released() | Failed():
            raise Conflict(_not_in_use(state, "a stopped allocation can be started"))
        case _:
            assert_never(state)


def _not_in_use(state: Allocation, can: str) -> Objection:
    why = f"allocation {state.request.allocation_id} is {state_name(state)}, and only {can}"
    return Objection("wrong_state", why)


def _ending(state: Living, end: AllocationReleasing | AllocationFailed) -> tuple[AllocationFact, ...]:
    leased = lease_of(state) is not None
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


def slice_stopped(state: Allocation, slot: SlotId, *, forced: bool) -> tuple[AllocationFact, ...]:
    """The last slice to be off makes the allocation stopped."""
    match state:
        case Stopping(on=on) if slot in on:
            allocation = state.request.allocation_id
            off = SliceStopped(allocation, slot, forced)
            return (off,) if on - {slot} else (off, AllocationStopped(allocation))
        case _:
            return ()


def slice_removed(state: Allocation, slot: SlotId) -> tuple[AllocationFact, ...]:
    """The last proof of absence ends a release. Told twice, the second changes nothing."""
    match state:
        case Releasing(remaining=remaining) | Failed(remaining=remaining) if slot in remaining:
            return _emptied(state, SliceRemoved(state.request.allocation_id, slot))
        case _:
            return ()


def _emptied(state: Releasing | Failed, how: SliceRemoved | SliceRemovalWaived) -> tuple[AllocationFact, ...]:
    last = isinstance(state, Releasing) and state.remaining == {how.slot_id}
    return (how, AllocationReleased(how.allocation_id)) if last else (how,)


def slice_remains(state: Allocation, unproved: SliceRemovalUnproved) -> tuple[AllocationFact, ...]:
    match state:
        case Releasing(remaining=remaining) | Failed(remaining=remaining) if unproved.slot_id in remaining:
            return (unproved,)
        case _:
            return ()


def retry_removal(state: Allocation, slot: SlotId) -> tuple[AllocationFact, ...]:
    """Have a slot emptied anew. Raises `Conflict` unless it is still to be emptied."""
    return (SliceRemovalRetried(_emptying(state, slot).request.allocation_id, slot),)


def waive_removal(state: Allocation, slot: SlotId, why: str) -> tuple[AllocationFact, ...]:
    """Go on as if the slot were proved empty. Raises `Conflict` unless it is still to be emptied."""
    emptying = _emptying(state, slot)
    return _emptied(emptying, SliceRemovalWaived(emptying.request.allocation_id, slot, why))


def _emptying(state: Allocation, slot: SlotId) -> Releasing | Failed:
    match state:
        case Releasing(remaining=remaining) | Failed(remaining=remaining) if slot in remaining:
            return state
        case _:
            why = f"allocation {state.request.allocation_id} does not wait for {slot} to be emptied"
            raise Conflict(Objection("not_to_be_emptied", why))


def cancel(state: Allocation, reason: Reason) -> tuple[AllocationFact, ...]:
    """Stop bringing slices up: the allocation fails. Raises `Conflict` for one that is over or on its way there."""
    if facts := fail(state, reason):
        return facts
    raise Conflict(Objection("already_ending", f"allocation {state.request.allocation_id} is ending already"))


def is_news(history: tuple[AllocationFact, ...], fact: SliceAddressObserved | SliceRemovalUnproved) -> bool:
    """Whether a node's observation differs from the last of its kind that was recorded for the slot."""
    before = (said for said in reversed(history) if type(said) is type(fact) and said.slot_id == fact.slot_id)
    return next(before, None) != fact
