"""What each command decides about an allocation: its state in, facts or a refusal out.

A slot is given back by a fact of its own stream, recorded in the same append as the allocation's.
"""

from datetime import datetime, timedelta
from typing import Final, assert_never

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
    awaiting_proof,
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
    AllocationReplaced,
    AllocationStarting,
    AllocationStopped,
    AllocationStopping,
    LeaseEnded,
    LeaseExpired,
    LeaseGranted,
    PlacedSlot,
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

SECOND_PLACEMENT: Final = 2


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


def fail_slice(state: Allocation, slot: SlotId, reason: Reason) -> tuple[AllocationFact, ...]:
    """Return the facts for a slice that could not be made; none if the slot is not the allocation's."""
    match state:
        case Provisioning() | Active() | Starting() | Stopping() | Stopped() if slot in slot_ids(state.slots):
            return fail(state, reason)
        case _:
            return ()


def may_be_replaced(state: Allocation, slot: SlotId, now: datetime) -> bool:
    """Whether it may be placed on another node after the bring-up in a slot failed due to a node fault: once, before
    its deadline, and unless the request forbids it or names its node.
    """
    match state:
        case Provisioning(request=request, deadline=deadline) if slot in slot_ids(state.slots):
            may_move = request.replace_on_failure and request.node is None
            return may_move and not state.former.slots and now < deadline
        case _:
            return False


def replace_slots(state: Provisioning, slots: tuple[PlacedSlot, ...], reason: Reason) -> AllocationReplaced:
    """Return the fact that replaces the allocation's slots by slots on another node."""
    return AllocationReplaced(
        allocation_id=state.request.allocation_id,
        vacated=tuple(slot.slot_id for slot in state.slots),
        slots=slots,
        reason=reason,
        attempt=SECOND_PLACEMENT,
        deadline=state.deadline,
    )


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


def hung_slot(state: Allocation) -> SlotId | None:
    """Return the first slot whose node accepted its first order and reported no result; None if there is none.

    A second placement has only what the first one left of the time, so a missed deadline proves nothing about its node.
    """
    match state:
        case Provisioning(started=started, ready=up, former=former) if not former.slots:
            return min(started - up, default=None)
        case _:
            return None


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
    """The last proof of absence ends a release. Reported twice, the second changes nothing."""
    if slot not in awaiting_proof(state):
        return ()
    return _emptied(state, SliceRemoved(state.request.allocation_id, slot))


def _emptied(state: Allocation, how: SliceRemoved | SliceRemovalWaived) -> tuple[AllocationFact, ...]:
    last = isinstance(state, Releasing) and state.remaining == {how.slot_id}
    return (how, AllocationReleased(how.allocation_id)) if last else (how,)


def slice_remains(state: Allocation, unproved: SliceRemovalUnproved) -> tuple[AllocationFact, ...]:
    return (unproved,) if unproved.slot_id in awaiting_proof(state) else ()


def retry_removal(state: Allocation, slot: SlotId) -> tuple[AllocationFact, ...]:
    """Have a slot emptied again. Raises `Conflict` unless it is still to be emptied."""
    _check_awaiting_proof(state, slot)
    return (SliceRemovalRetried(state.request.allocation_id, slot),)


def waive_removal(state: Allocation, slot: SlotId, why: str) -> tuple[AllocationFact, ...]:
    """Go on as if the slot were proved empty. Raises `Conflict` unless it is still to be emptied."""
    _check_awaiting_proof(state, slot)
    return _emptied(state, SliceRemovalWaived(state.request.allocation_id, slot, why))


def _check_awaiting_proof(state: Allocation, slot: SlotId) -> None:
    if slot not in awaiting_proof(state):
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
