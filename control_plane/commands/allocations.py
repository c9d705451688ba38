"""Commands that stop, start and release an allocation and renew its lease, and commands that run when its deadline or
its lease ends.
"""

from dataclasses import replace
from datetime import datetime, timedelta

from control_plane.commands.admission.quotas import hold_project_of, with_budget
from control_plane.commands.bring_ups import failure_changes, merged_by_stream
from control_plane.commands.loaded import LoadedAllocation, check_supported, load
from control_plane.decisions import allocation as life
from control_plane.decisions.allocation_states import awaiting_proof
from control_plane.decisions.budgets import NOTHING
from control_plane.decisions.deadlines import STOP_WITHIN, ready_within
from control_plane.decisions.fleet.device_health import exclude_for
from control_plane.decisions.fleet.slots import quarantine_overdue
from control_plane.decisions.ingress import withdraw_overdue
from control_plane.decisions.leases import limits_of, limits_of_project, term_of
from control_plane.decisions.refusals import refuse_if
from control_plane.handle import Command, Decision, Transaction
from control_plane.origin import Origin
from control_plane.processes.allocation import last_placement_fact
from control_plane.work.missing_proofs import missing_proofs
from control_plane.work.spooled_reports import has_recent_heartbeat, has_spooled_reports
from events.allocations import AllocationFact, AllocationFailed, LeaseExpiring, LeaseGranted, LeaseRenewed
from events.derived.quotas import NOTHING_USED
from events.envelope import Recorded
from events.facts import FailedBringUp, Reason
from events.ingress import IngressReserved, IngressWithdrawn
from events.ledger.append import Change
from events.values import AllocationId, NodeId, node_of
from tasks.catalogue import type_of


def release_allocation(allocation: AllocationId, origin: Origin, reason: Reason) -> Command:
    """Begin the release of an allocation. A repeated command changes nothing."""

    async def command(transaction: Transaction) -> Decision:
        loaded = await load(transaction.conn, allocation)
        cause = origin.at(transaction.now)
        return Decision(loaded.changes(life.release(loaded.state, reason)), cause)

    return command


def release_with_fault(allocation: AllocationId, origin: Origin, fault: str) -> Command:
    """Begin the release of an allocation with a fault of its hardware: the slots that it holds are excluded from
    placement until an admin readmits them. Raises `Conflict` if it holds no slot any more.
    """

    async def command(transaction: Transaction) -> Decision:
        loaded = await load(transaction.conn, allocation)
        refuse_if(life.against_reporting_fault(loaded.state))
        facts = life.release_with_fault(loaded.state, fault)
        excluded = [
            change
            for slot in sorted(life.slots_held(loaded.state))
            for change in loaded.slot_change(slot, exclude_for(slot, fault, loaded.rows[slot].excluded))
        ]
        changes = merged_by_stream(loaded.changes(facts, *excluded))
        return Decision(changes, origin.at(transaction.now))

    return command


def stop_allocation(allocation: AllocationId, origin: Origin, reason: Reason) -> Command:
    """Switch the allocation's slices off. A repeated command changes nothing.

    Raises `Conflict` if the agent of one of its nodes does not support stopping a slice.
    """

    async def command(transaction: Transaction) -> Decision:
        loaded = await load(transaction.conn, allocation)
        facts = life.stop(loaded.state, reason, transaction.now + STOP_WITHIN)
        if facts:
            await check_supported(transaction.conn, _nodes(loaded), type_of("slice.stop").announced)
        return Decision(loaded.changes(facts), origin.at(transaction.now))

    return command


def start_allocation(allocation: AllocationId, origin: Origin, reason: Reason) -> Command:
    """Switch the allocation's slices on again. A repeated command changes nothing."""

    async def command(transaction: Transaction) -> Decision:
        loaded = await load(transaction.conn, allocation)
        deadline = transaction.now + ready_within(loaded.state.specification.sku.content)
        return Decision(
            loaded.changes(life.start(loaded.state, reason, deadline)), origin.at(transaction.now)
        )

    return command


def renew_lease(allocation: AllocationId, origin: Origin, duration: timedelta) -> Command:
    """Let the lease of an allocation end after `duration` from now. A lease that lasts as long already is not
    changed. The limits that the allocation has recorded apply, not those of the present catalogue; so do the present
    limits of its project, of which the budget must cover the added time.
    """

    async def command(transaction: Transaction) -> Decision:
        # The row of the project is locked before those of the slots.
        quotas = await hold_project_of(transaction.conn, allocation)
        loaded = await load(transaction.conn, allocation)
        state, now = loaded.state, transaction.now
        quotas = await with_budget(transaction.conn, state.request.project, quotas, now)
        cost = (
            NOTHING
            if quotas.budget is None
            else life.cost_of_renewal(state, now, duration, quotas.budget.month)
        )
        limits = limits_of(state.specification)
        limits += limits_of_project(state.request.project, quotas.project_limits)
        exceeded = quotas.exceeded(NOTHING_USED, cost)
        renewed = life.renew(state, now, duration, limits, exceeded)
        return Decision(
            loaded.changes(renewed), origin.at(now), last_check=quotas.last_check(NOTHING_USED, cost)
        )

    return command


def expire_lease(allocation: AllocationId) -> Command:
    """Release the allocation if its lease is over."""

    async def command(transaction: Transaction) -> Decision:
        loaded = await load(transaction.conn, allocation)
        expired = life.expire(loaded.state, transaction.now)
        return _timed_decision(loaded, expired, transaction.now, "end of lease")

    return command


def expire_wait(allocation: AllocationId) -> Command:
    """Fail the allocation if it waits for capacity and its wait is over."""

    async def command(transaction: Transaction) -> Decision:
        loaded = await load(transaction.conn, allocation)
        cause = loaded.history[-1].leads_to(
            actor="process:allocation", reason="end of the wait for capacity", observed_at=transaction.now
        )
        return Decision(loaded.changes(life.expire_wait(loaded.state, transaction.now)), cause)

    return command


def announce_end(allocation: AllocationId, lead: timedelta) -> Command:
    """Record that the lease of the allocation ends after this lead time or earlier, unless it was renewed, is over, or
    this was recorded before.
    """

    async def command(transaction: Transaction) -> Decision:
        loaded = await load(transaction.conn, allocation)
        facts = life.announce_end(loaded.state, term_of(loaded.history), lead, transaction.now)
        return _timed_decision(loaded, facts, transaction.now, "lead time before the end of the lease")

    return command


def miss_deadline(allocation: AllocationId, *, unreachable_after: timedelta) -> Command:
    """Fail an allocation if its deadline has passed, or withdraw those of its ingress rules that are overdue.

    Nothing changes while a reachable node of the allocation still has reports to deliver.
    """

    async def command(transaction: Transaction) -> Decision:
        loaded = await load(transaction.conn, allocation)
        failed = life.miss_deadline(loaded.state, transaction.now)
        late = failed or withdraw_overdue(loaded.state, loaded.ingress_rules, transaction.now)
        missed = _timed_decision(loaded, late, transaction.now, "deadline")
        if missed.changes and await has_spooled_reports(transaction.conn, _nodes(loaded), unreachable_after):
            return replace(missed, changes=())
        match failed:
            case (AllocationFailed(reason=reason), *_):
                counted = await _counted(transaction, loaded, reason, unreachable_after)
                own, *others = missed.changes
                return replace(missed, changes=merged_by_stream((own, *counted, *others)))
            case _:
                return missed

    return command


def record_overdue_release(
    allocation: AllocationId, deadline: datetime, *, unreachable_after: timedelta
) -> Command:
    """Record that slots of a released or failed allocation are not proved empty by the deadline, each with its reason,
    and quarantine them.

    Nothing changes while a reachable node of these slots still has reports to deliver.
    """

    async def command(transaction: Transaction) -> Decision:
        conn, now = transaction.conn, transaction.now
        loaded = await load(conn, allocation)
        cause = last_placement_fact(loaded.history).leads_to(
            actor="process:allocation", reason="deadline of the release", observed_at=now
        )
        slots = sorted(awaiting_proof(loaded.state))
        if not life.is_release_overdue(loaded.state, deadline, now) or await has_spooled_reports(
            conn, set(map(node_of, slots)), unreachable_after
        ):
            return Decision((), cause)
        states = {slot: loaded.rows[slot].state for slot in slots}
        missing = await missing_proofs(conn, allocation, states, unreachable_after)
        reasons = {slot: each.reason(slot) for slot, each in missing.items()}
        quarantined = [
            change
            for slot, state in states.items()
            for change in loaded.slot_change(slot, quarantine_overdue(slot, state, allocation, reasons[slot]))
        ]
        facts = life.record_overdue(loaded.state, deadline, now, reasons)
        return Decision(loaded.changes(facts, *quarantined), cause)

    return command


async def _counted(
    transaction: Transaction, loaded: LoadedAllocation, reason: Reason, unreachable_after: timedelta
) -> tuple[Change, ...]:
    """Return the ledger changes that count an allocation's missed deadline as a node fault, if the node accepted the
    order, sends heartbeats and reported no result; else none.

    The agent's own deadline is shorter, so a working agent reports the failure first.
    """
    slot = life.hung_slot(loaded.state)
    if slot is None or not await has_recent_heartbeat(transaction.conn, node_of(slot), unreachable_after):
        return ()
    failure = FailedBringUp(slot, loaded.state.request.allocation_id, reason, transaction.now)
    return await failure_changes(transaction.conn, loaded.rows[slot], failure)


def _nodes(loaded: LoadedAllocation) -> set[NodeId]:
    """Return the nodes of the allocation's current slots."""
    return {node_of(slot.slot_id) for slot in loaded.state.slots}


def _timed_decision(
    loaded: LoadedAllocation, decided: tuple[AllocationFact, ...], now: datetime, reason: str
) -> Decision:
    """Return the outcome of a command that a deadline or the end of a lease triggered.

    Each new fact is recorded with its cause, the fact that `_deadline_fact` returns.
    """
    cause = _deadline_fact(loaded, decided).leads_to(
        actor="process:allocation", reason=reason, observed_at=now
    )
    return Decision(loaded.changes(decided), cause)


def _deadline_fact(loaded: LoadedAllocation, decided: tuple[AllocationFact, ...]) -> Recorded[AllocationFact]:
    """Return the fact that set the time at which the command became due: the request of an overdue ingress rule, the
    grant or renewal of a lease that ends soon, or else the last fact that changed the desired state of all slots.
    """
    match decided:
        case (IngressWithdrawn(ingress_id=name), *_):
            return next(
                each
                for each in loaded.history
                if isinstance(each.fact, IngressReserved) and each.fact.ingress_id == name
            )
        case (LeaseExpiring(), *_):
            granted = (
                each
                for each in reversed(loaded.history)
                if isinstance(each.fact, LeaseGranted | LeaseRenewed)
            )
            return next(granted)
        case _:
            return last_placement_fact(loaded.history)
