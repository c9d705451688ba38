"""Decisions about an allocation: each takes the allocation's state and returns facts, or raises a refusal.

A slot is released by a fact of its own stream, recorded in the same append as the fact of the allocation.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
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
    Waiting,
    awaiting_proof,
    end_of_lease,
    lease_of,
    slot_ids,
    state_name,
)
from control_plane.decisions.budgets import NOTHING, Month, weight_of
from control_plane.decisions.fleet.device_health import FAULT_REPORTED
from control_plane.decisions.leases import LeaseLimit, LeaseTerm, against_length
from control_plane.decisions.quotas import ExceededLimit, refuse_over
from control_plane.decisions.refusals import Conflict, Objection, refuse_if
from events.allocations import (
    AllocationActivated,
    AllocationDequeued,
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
    LeaseExpiring,
    LeaseGranted,
    LeaseRenewed,
    PlacedSlot,
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
from events.facts import Reason, RemainingSlot
from events.values import SlotId

SECOND_PLACEMENT: Final = 2
WAIT_EXPIRED: Final = "wait_expired"
"""Code of the failure of an allocation that was not placed before the end of its wait."""


def release(state: Allocation, reason: Reason) -> tuple[AllocationFact, ...]:
    """Release the allocation; a repeated request returns no facts. Raises `Conflict` if the allocation failed."""
    match state:
        case Waiting():
            # Nothing has to be emptied, so the release is complete at once.
            allocation = state.request.allocation_id
            ended = AllocationReleasing(allocation, reason), AllocationReleased(allocation)
            return end_of_wait(state), *ended
        case Provisioning() | Active() | Starting() | Stopping() | Stopped():
            return _ending(state, AllocationReleasing(state.request.allocation_id, reason))
        case Releasing() | Released():
            return ()
        case Failed():
            raise Conflict(*against_releasing(state))
        case Requested():
            raise AssertionError(
                "one append must record an allocation request together with its placement or queueing"
            )
        case _:
            assert_never(state)


def end_of_wait(state: Waiting) -> AllocationDequeued:
    """Return the fact that ends the wait of an allocation; the fact of its placement or end must follow."""
    return AllocationDequeued(state.request.allocation_id, state.queued.project)


def expire_wait(state: Allocation, now: datetime) -> tuple[AllocationFact, ...]:
    """Fail the allocation if it waits and its wait is over; otherwise return no facts."""
    match state:
        case Waiting(queued=queued) if queued.waits_until <= now:
            allocation, seconds = (
                queued.allocation_id,
                (queued.waits_until - queued.queued_at).total_seconds(),
            )
            message = f"no capacity became free in {seconds:.0f} s; at the beginning of the wait: {queued.reason.message}"
            return end_of_wait(state), AllocationFailed(allocation, Reason(WAIT_EXPIRED, message))
        case _:
            return ()


def release_with_fault(state: Allocation, fault: str) -> tuple[AllocationFact, ...]:
    """Release the allocation because of a fault that its caller reports; return no facts if it is ending already."""
    match state:
        case Failed() | Releasing() | Released():
            return ()
        case _:
            return release(state, Reason(FAULT_REPORTED, f"released with the fault: {fault}"))


def slots_held(state: Allocation) -> frozenset[SlotId]:
    """Return the slots that no other allocation can have yet: the present slots of the allocation, and its former slots
    that are not proved empty.
    """
    match state:
        case Provisioning() | Active() | Starting() | Stopping() | Stopped():
            return slot_ids(state.slots) | awaiting_proof(state)
        case _:
            return awaiting_proof(state)


def against_reporting_fault(state: Allocation) -> list[Objection]:
    """Return the reason why no fault can be reported for the allocation; an empty list if it can."""
    if slots_held(state):
        return []
    return [Objection("no_slot_held", "the allocation holds no slot that could be excluded from placement")]


def against_ssh(state: Allocation) -> list[Objection]:
    """Return the reason why the SSH gateway opens no connection to the slices; an empty list if it does."""
    if isinstance(state, Active):
        return []
    return [_wrong_state(state, "the SSH gateway connects to the slices of active allocations only")]


def against_opening_terminal(state: Allocation) -> list[Objection]:
    """Return the reason why no terminal can be opened in the slices; the list is empty if one can be opened."""
    return against_ssh(state) or _against_gateway(state)


def _against_gateway(state: Allocation) -> list[Objection]:
    if state.request.gateway_key is not None:
        return []
    reason = (
        "browser terminals and SSH certificates need gateway_access, which this allocation was created without; logins"
        " with its SSH keys work, also through the gateway"
    )
    return [Objection("no_gateway_access", reason)]


def against_releasing(state: Allocation) -> list[Objection]:
    """Return the reason why the allocation cannot be released; an empty list if it can, or if a release has been
    requested before.
    """
    match state:
        case Failed():
            reason = "the allocation has failed already, so its slots need no request to be released"
            return [Objection("already_failed", reason)]
        case _:
            return []


def expire(state: Allocation, now: datetime) -> tuple[AllocationFact, ...]:
    """Release the allocation if its lease has expired; otherwise return no facts."""
    match state:
        case (Active() | Starting() | Stopping() | Stopped()) as leased if end_of_lease(leased) <= now:
            allocation, end = leased.request.allocation_id, end_of_lease(leased)
            reason = Reason("lease_expired", f"the lease ended at {end.isoformat()}")
            return LeaseExpired(allocation), *_ending(state, AllocationReleasing(allocation, reason))
        case _:
            return ()


def announce_end(
    state: Allocation, term: LeaseTerm | None, lead: timedelta, now: datetime
) -> tuple[AllocationFact, ...]:
    """Record that the lease ends after `lead` or earlier; return no facts if this is not due any more. `term` is the
    present term of the lease.
    """
    match state:
        case Active() | Starting() | Stopping() | Stopped() if term is not None and term.is_open(lead):
            if not term.ends_at - lead <= now < term.ends_at:
                return ()
            seconds = int(lead.total_seconds())
            return (LeaseExpiring(state.request.allocation_id, term.ends_at, seconds),)
        case _:
            return ()


def renew(
    state: Allocation,
    now: datetime,
    duration: timedelta,
    limits: Sequence[LeaseLimit],
    exceeded: Sequence[ExceededLimit] = (),
) -> tuple[AllocationFact, ...]:
    """Let the lease end at `now` plus `duration`; return no facts if it ends then or later already. `exceeded` are the
    limits of the project that the added time would exceed.

    Raises `Conflict` if the allocation has no lease, if the lease is over and only its release is outstanding, or if
    a limit is exceeded.
    """
    match state:
        case (Active() | Starting() | Stopping() | Stopped()) as leased:
            end, present = now + duration, end_of_lease(leased)
            if present <= now:
                reason = (
                    f"the lease ended at {present.isoformat()}, and the allocation is about to be released"
                )
                raise Conflict(Objection("lease_over", reason))
            refuse_over(against_length(int(duration.total_seconds()), limits), exceeded)
            return () if end <= present else (LeaseRenewed(leased.request.allocation_id, end),)
        case _:
            raise Conflict(*against_renewing(state))


def cost_of_renewal(state: Allocation, now: datetime, duration: timedelta, month: Month) -> Decimal:
    """Return what the time that a renewal adds to the lease costs in a month, as a weight; 0 without a lease."""
    match state:
        case (Active() | Starting() | Stopping() | Stopped()) as leased:
            price = leased.specification.sku.content.price_per_hour
            count = leased.request.slot_count
            return weight_of(price, count, end_of_lease(leased), now + duration, month)
        case _:
            return NOTHING


def against_renewing(state: Allocation) -> list[Objection]:
    """Return the reason why the allocation's lease cannot be renewed; an empty list if it can. Not checked: whether the
    lease is over, and the limits of its length.
    """
    match state:
        case Active() | Starting() | Stopping() | Stopped():
            return []
        case Requested() | Waiting() | Provisioning() | Releasing() | Released() | Failed():
            requirement = "a lease can be renewed from the first activation of the allocation until its end"
            return [_wrong_state(state, requirement)]
        case _:
            assert_never(state)


def against_ssh_certificate(state: Allocation) -> list[Objection]:
    """Return the reason why no SSH certificate is issued for the slices of the allocation; an empty list if one is."""
    if objections := _against_gateway(state):
        return objections
    if isinstance(state, Active):
        return []
    return [_wrong_state(state, "SSH certificates are issued for active allocations only")]


def fail(state: Allocation, reason: Reason) -> tuple[AllocationFact, ...]:
    """Fail the allocation; return no facts if it has ended or is being released."""
    match state:
        case Provisioning() | Active() | Starting() | Stopping() | Stopped():
            return _ending(state, AllocationFailed(state.request.allocation_id, reason))
        case _:
            return ()


def fail_slice(state: Allocation, slot: SlotId, reason: Reason) -> tuple[AllocationFact, ...]:
    """Return the facts that fail an allocation because one of its slices could not be created; return no facts if the
    slot is not a current slot of the allocation.
    """
    match state:
        case Provisioning() | Active() | Starting() | Stopping() | Stopped() if slot in slot_ids(state.slots):
            return fail(state, reason)
        case _:
            return ()


def may_be_replaced(state: Allocation, slot: SlotId, now: datetime) -> bool:
    """Return whether the allocation may be placed on another node after the bring-up in a slot failed due to a node
    fault. This is permitted once per allocation and only before its deadline; never if the request forbids it or names
    its node.
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
    """Fail the allocation if slices are not ready, or not stopped, by its deadline; otherwise return no facts."""
    match state:
        case Provisioning(deadline=deadline, ready=up) if deadline <= now:
            expected, late = "ready", slot_ids(state.slots) - up
        case Starting(deadline=deadline, down=late) if deadline <= now:
            expected = "ready"
        case Stopping(deadline=deadline, on=late) if deadline <= now:
            expected = "stopped"
        case _:
            return ()
    names = ", ".join(sorted(late))
    return fail(
        state,
        Reason(
            "deadline_missed",
            f"these slices were not {expected} by the deadline {deadline.isoformat()}: {names}",
        ),
    )


def is_release_overdue(state: Allocation, deadline: datetime, now: datetime) -> bool:
    """Return whether the deadline of the release has passed while slots of the ended allocation still await the proof
    that they are empty, and no event records this yet.
    """
    match state:
        case Releasing(overdue=None) | Failed(overdue=None):
            return bool(state.remaining) and deadline <= now
        case _:
            return False


def record_overdue(
    state: Allocation, deadline: datetime, now: datetime, reasons: Mapping[SlotId, Reason]
) -> tuple[AllocationFact, ...]:
    """Record that a release is overdue, with the reason of each slot that awaits its proof; return no facts if it is
    not overdue, or if that was recorded before.
    """
    if not is_release_overdue(state, deadline, now):
        return ()
    remaining = tuple(RemainingSlot(slot, reasons[slot]) for slot in sorted(awaiting_proof(state)))
    return (ReleaseOverdue(state.request.allocation_id, deadline, remaining),)


def hung_slot(state: Allocation) -> SlotId | None:
    """Return the first slot in which a slice started to be created but did not become ready; None if there is none.

    None for an allocation that was placed on another node: the second node had only the time that was left, so the
    missed deadline does not show that this node is at fault.
    """
    match state:
        case Provisioning(started=started, ready=up, former=former) if not former.slots:
            return min(started - up, default=None)
        case _:
            return None


def stop(state: Allocation, reason: Reason, deadline: datetime) -> tuple[AllocationFact, ...]:
    """Stop an allocation's slices; a repeated request returns no facts. Raises `Conflict` unless the allocation is
    active or starting.
    """
    refuse_if(against_stopping(state))
    if isinstance(state, Active | Starting):
        return (AllocationStopping(state.request.allocation_id, reason, deadline),)
    return ()


def against_stopping(state: Allocation) -> list[Objection]:
    """Return the reason why the allocation's state does not permit a stop; the list is empty if it does, or if a stop
    was requested before. Whether the agents of its nodes support a stop is not checked here.
    """
    match state:
        case Active() | Starting() | Stopping() | Stopped():
            return []
        case Requested() | Waiting() | Provisioning() | Releasing() | Released() | Failed():
            return [_wrong_state(state, "only an active or starting allocation can be stopped")]
        case _:
            assert_never(state)


def start(state: Allocation, reason: Reason, deadline: datetime) -> tuple[AllocationFact, ...]:
    """Start the slices of a stopped allocation; return no facts if the allocation is active or starting.

    Raises `Conflict` in every other state.
    """
    refuse_if(against_starting(state))
    if isinstance(state, Stopped):
        return (AllocationStarting(state.request.allocation_id, reason, deadline),)
    return ()


def against_starting(state: Allocation) -> list[Objection]:
    """Return the reason why the allocation cannot be started; an empty list if it can, or if it runs."""
    match state:
        case Stopped() | Active() | Starting():
            return []
        case Requested() | Waiting() | Provisioning() | Stopping() | Releasing() | Released() | Failed():
            return [_wrong_state(state, "only a stopped allocation can be started")]
        case _:
            assert_never(state)


def _wrong_state(state: Allocation, requirement: str) -> Objection:
    reason = f"allocation {state.request.allocation_id} is {state_name(state)}; {requirement}"
    return Objection("wrong_state", reason)


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
    """Record the address of a slice that its node observed, if slices of the allocation may run. Otherwise return no
    facts.
    """
    match state:
        case Provisioning() | Active() | Starting() if seen.slot_id in slot_ids(state.slots):
            return (seen,)
        case _:
            return ()


def slice_ready(state: Allocation, ready: SliceReady, now: datetime) -> tuple[AllocationFact, ...]:
    """Record that a slice is ready. The last slice of an allocation to become ready makes the allocation active, and
    the first activation grants the lease.
    """
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
    """Record the proof that a slice is off. The proof of the last slice makes the allocation stopped."""
    match state:
        case Stopping(on=on) if slot in on:
            allocation = state.request.allocation_id
            off = SliceStopped(allocation, slot, forced)
            return (off,) if on - {slot} else (off, AllocationStopped(allocation))
        case _:
            return ()


def slice_removed(state: Allocation, slot: SlotId) -> tuple[AllocationFact, ...]:
    """Record the proof that a slot is empty. The proof of the allocation's last slot ends a release. For a repeated
    report, return no facts.
    """
    if slot not in awaiting_proof(state):
        return ()
    return _emptied(state, SliceRemoved(state.request.allocation_id, slot))


def _emptied(state: Allocation, how: SliceRemoved | SliceRemovalOverridden) -> tuple[AllocationFact, ...]:
    last = isinstance(state, Releasing) and state.remaining == {how.slot_id}
    return (how, AllocationReleased(how.allocation_id)) if last else (how,)


def slice_removal_incomplete(
    state: Allocation, unproved: SliceRemovalIncomplete
) -> tuple[AllocationFact, ...]:
    return (unproved,) if unproved.slot_id in awaiting_proof(state) else ()


def retry_removal(state: Allocation, slot: SlotId) -> tuple[AllocationFact, ...]:
    """Return the fact that orders a slot to be emptied again. Raises `Conflict` for a slot that does not await its
    node's proof that it is empty.
    """
    _check_awaiting_proof(state, slot)
    return (SliceRemovalRetried(state.request.allocation_id, slot),)


def override_removal(state: Allocation, slot: SlotId, reason: str) -> tuple[AllocationFact, ...]:
    """Return the facts that treat a slot as empty without proof. Raises `Conflict` for a slot that does not await its
    node's proof that it is empty.
    """
    _check_awaiting_proof(state, slot)
    return _emptied(state, SliceRemovalOverridden(state.request.allocation_id, slot, reason))


def _check_awaiting_proof(state: Allocation, slot: SlotId) -> None:
    if slot not in awaiting_proof(state):
        reason = f"allocation {state.request.allocation_id} has no pending slice removal in slot {slot}"
        raise Conflict(Objection("not_awaiting_removal", reason))


def cancel(state: Allocation, reason: Reason) -> tuple[AllocationFact, ...]:
    """Cancel the bring-up of an allocation, which fails it. Raises `Conflict` if the allocation has ended or is
    ending.
    """
    if facts := fail(state, reason):
        return facts
    raise Conflict(
        Objection(
            "already_ending", f"allocation {state.request.allocation_id} is {state_name(state)} already"
        )
    )


def is_new(history: tuple[AllocationFact, ...], fact: SliceAddressObserved | SliceRemovalIncomplete) -> bool:
    """Return whether a reported observation differs from the last recorded observation of its type about the same
    slot.
    """
    previous = (
        each for each in reversed(history) if type(each) is type(fact) and each.slot_id == fact.slot_id
    )
    return next(previous, None) != fact
