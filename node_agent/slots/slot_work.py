"""Work on a slot, determined by its stored order and the observed state: the same for orders, restarts and surveys.

    stored order       observed            action                              reports
    apply, no outcome  anything            start the slice                     starting, ready or failed
    apply, ready       as ordered          none                                (ready, if asked)
    apply, ready       machine not running start the slice again               interrupted, starting, ready or failed
    apply, ready       anything else       repair, without touching the guest  (ready, if asked)
    apply, failed      not inspected       none: a new order is required       (failed, if asked)
    stop, stopped      as ordered          none                                (stopped, if asked)
    stop, stopped      anything else       stop again                          (stopped, if asked)
    stop, else         anything            stop                                stopped or remains, if new or asked
    remove, removed    nothing             none                                (removed, if asked)
    remove, removed    anything else       remove again                        (removed, if asked)
    remove, else       anything            remove                              removed or remains, if new or asked

"(ready, if asked)" stands for a report that is made only if an order requests it. `node_agent.slots.outcomes` makes the
reports. A ready slice is always reported as interrupted when its machine is found not running.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import assert_never

import structlog

from events.values import index_of
from node_agent.host.desired_slice import network_of, slice_of
from node_agent.host.drift import Drifts, differences, newest, occupied
from node_agent.host.host import STARTING, Host
from node_agent.host.ingress_drift import concerns_ingress, has_foreign_ingress, lost_ingress
from node_agent.host.reachability import unreached
from node_agent.host.slices import Difference, HostUnreadable, Slice, SliceNetwork, Step
from node_agent.runtime.halt import Halt, Halted
from node_agent.slots.converge import (
    leftovers,
    planned,
    planned_off,
    remove_all,
    repair,
    still_on,
    switch_off,
)
from node_agent.slots.fence import FenceEntry
from node_agent.slots.outcomes import Outcomes, address_changed, record_forced_stop, stopped_outcome
from node_agent.slots.slice_removal import remains, remove_slice, removed
from node_agent.slots.slice_start import bring_up, observe
from node_agent.slots.slice_stop import stop_slice
from node_agent.slots.slots import Slot
from node_agent.transport.progress import NO_LISTENER, ProgressListener, reporting_progress
from tasks.orders import ApplySlice, Order, RemoveSlice, StopSlice
from tasks.reports import (
    Reason,
    SliceAddress,
    SliceFailed,
    SliceReady,
    SliceRemoved,
    SliceStarting,
    SliceStopped,
)

log = structlog.get_logger(__name__)

Steps = tuple[Step, ...]


class _GuestNotRunning(Exception):
    """The guest stopped during a repair, so the slice must be started again instead of repaired."""


@dataclass(frozen=True, slots=True)
class SlotWork:
    """Executor of the work on slots. The caller of `run` must hold the slot's work lock.

    `asked`: an order requests a report of the outcome, even if the outcome has not changed.
    """

    host: Host
    outcomes: Outcomes
    drifts: Drifts
    listener: ProgressListener = NO_LISTENER
    """Receiver of progress: each step of the work on a slot is reported to it."""

    def run(self, slot: Slot, held: FenceEntry, halt: Halt, *, asked: bool) -> None:
        """Execute the slot's stored order, and report the result. Raises `OSError` if the disk fails."""
        try:
            self.outcomes.report_pending(slot, held)
            with reporting_progress(self.listener, held.order.order_id):
                self._carry_out(slot, held, halt, asked=asked)
        except Halted:
            log.info("work_on_slot_stopped_on_request")
        except HostUnreadable as unreadable:
            # Attempts handle this exception themselves; here the host was read before one. The next survey retries.
            log.warning("host_unreadable", reason=str(unreadable))

    def notice(self, slot: Slot, held: FenceEntry) -> bool:
        """Report the interruption of a slice that was ready and does not run. Return whether work on the slot is due.

        Raises `HostUnreadable`, `OSError`.
        """
        self.outcomes.report_pending(slot, held)
        match held.order.body, held.outcome:
            case ApplySlice() as body, SliceReady():
                self._watch(held.order, body)
            case _:
                pass
        due = self._due_work(held)
        if STARTING & due:
            self._leave(held.order)
            self.outcomes.report_interruption(slot, held.order)
        return bool(due)

    def is_due(self, held: FenceEntry) -> bool:
        """Whether work on the slot or a report is due, by its order and the observed state. Raises `HostUnreadable`."""
        return not held.reported or bool(self._due_work(held))

    def _due_work(self, held: FenceEntry) -> frozenset[str]:
        """Return the names of the steps that are due for the slot, and `address`, `ingress` or `drift` if a report
        about it is due.
        """
        match held.order.body, held.outcome:
            case ApplySlice() as body, SliceReady():
                wanted = slice_of(held.order, body, ingress_changed=not held.applied)
                seen = observe(held.order, wanted, self.host)
                steps, lasting = (
                    planned(wanted, self.host),
                    (*_lease_differences(seen), *self._unreached(wanted, body)),
                )
                news = {"address"} if address_changed(held.address, seen) else set()
                if not held.applied or held.lost or held.others:
                    news.add("ingress")
                return frozenset(_names(steps)) | news | self._drift_changed(held.order, lasting)
            case StopSlice(network=network), SliceStopped():
                stopped = network_of(held.order.slot_id, network)
                steps, on = planned_off(stopped, self.host), still_on(stopped, self.host)
                return frozenset((*_names(steps), *on)) | self._drift_changed(held.order, ())
            case RemoveSlice(network=network), SliceRemoved():
                left = leftovers(network_of(held.order.slot_id, network), self.host)
                return frozenset(left) | self._drift_changed(held.order, ())
            case _, SliceFailed() | SliceRemoved():
                return frozenset()
            case _:
                return frozenset({"order"})

    def _watch(self, order: Order, body: ApplySlice) -> None:
        self.host.reachability.watch(slice_of(order, body), body.readiness.port)

    def _leave(self, order: Order) -> None:
        self.host.reachability.leave(index_of(order.slot_id))

    def _unreached(self, wanted: Slice, body: ApplySlice) -> tuple[Difference, ...]:
        """Return the drift of the network paths to the slice that fail in the newest probes."""
        open_ = self.drifts.open_in(wanted.network.index, "slice.unreachable")
        return unreached(self.host.reachability.findings(wanted, body.readiness.port), wanted, open_)

    def _drift_changed(self, order: Order, lasting: tuple[Difference, ...]) -> set[str]:
        """Return a set with the word `drift`, which makes a report of drift due, if the slot's recorded open drift
        differs from `lasting`, the drift that no step repairs; else an empty set.
        """
        return set() if self.drifts.has_exactly_open(index_of(order.slot_id), lasting) else {"drift"}

    def _carry_out(self, slot: Slot, held: FenceEntry, halt: Halt, *, asked: bool) -> None:
        match held.order.body:
            case ApplySlice() as body:
                self._apply(slot, held, body, halt, asked=asked)
            case StopSlice() as body:
                self._stop(slot, held, body, halt, asked=asked)
            case RemoveSlice() as body:
                self._remove(slot, held, body, halt, asked=asked)

    def _apply(self, slot: Slot, held: FenceEntry, body: ApplySlice, halt: Halt, *, asked: bool) -> None:
        match held.outcome:
            case SliceReady():
                self._keep_ready(slot, held, body, halt, asked=asked)
            case SliceFailed() as failed:
                self.outcomes.record_outcome(slot, held.order, failed, asked=asked)
            case _:
                self._start_slice(slot, held.order, body, halt, asked=asked)

    def _stop(self, slot: Slot, held: FenceEntry, body: StopSlice, halt: Halt, *, asked: bool) -> None:
        self._leave(held.order)
        order, stopped = held.order, network_of(held.order.slot_id, body.network)
        if isinstance(held.outcome, SliceStopped) and not (asked and still_on(stopped, self.host)):
            self._keep_stopped(order, stopped, halt)
            if asked:
                self.outcomes.record_outcome(slot, order, held.outcome, asked=True)
            return
        left = stop_slice(order, body, self.host, halt, lambda: record_forced_stop(slot, order))
        if not left:
            self.drifts.record(index_of(order.slot_id), cause=order)
        self.outcomes.record_outcome(
            slot, order, remains(order, left) if left else stopped_outcome(slot, order), asked=asked
        )

    def _keep_stopped(self, order: Order, stopped: SliceNetwork, halt: Halt) -> None:
        """Stop the parts of a stopped slice that run again. The outcome of the stop order does not change."""
        steps, on = planned_off(stopped, self.host), still_on(stopped, self.host)
        found = left = _differences_from_stopped(steps, on)
        if steps or on:
            refusals = [str(each) for each in switch_off(stopped, self.host, halt)]
            log.info("remains_of_stopped_slice_removed", errors=refusals)
            left = _differences_from_stopped(planned_off(stopped, self.host), still_on(stopped, self.host))
        self.drifts.record(index_of(order.slot_id), found, left, order)

    def _remove(self, slot: Slot, held: FenceEntry, body: RemoveSlice, halt: Halt, *, asked: bool) -> None:
        self._leave(held.order)
        order, gone = held.order, network_of(held.order.slot_id, body.network)
        if isinstance(held.outcome, SliceRemoved) and not (asked and leftovers(gone, self.host)):
            self._keep_empty(order, gone, halt)
            if asked:
                self.outcomes.record_outcome(slot, order, removed(order, self.host), asked=True)
            return
        outcome = remove_slice(order, body, self.host, halt)
        if isinstance(outcome, SliceRemoved):
            self.drifts.record(index_of(order.slot_id), cause=order)
        self.outcomes.record_outcome(slot, order, outcome, asked=asked)

    def _keep_empty(self, order: Order, gone: SliceNetwork, halt: Halt) -> None:
        """Remove objects that appeared in an empty slot, so that its next tenant does not find them."""
        found = left = leftovers(gone, self.host)
        if found:
            refusals = [str(each) for each in remove_all(gone, self.host, halt)]
            log.info("remains_in_empty_slot_removed", errors=refusals)
            left = leftovers(gone, self.host)
        self.drifts.record(index_of(order.slot_id), _occupied(found), _occupied(left), order)

    def _keep_ready(self, slot: Slot, held: FenceEntry, body: ApplySlice, halt: Halt, *, asked: bool) -> None:
        order, wanted = held.order, slice_of(held.order, body, ingress_changed=not held.applied)
        # Update the probes first, so that none enters by an ingress rule that is about to be deleted.
        self._watch(order, body)
        found, steps = self._repair(wanted, planned(wanted, self.host), halt)
        if not held.applied:
            # Differences of ingress rules are the ordered change and not drift.
            found = tuple(each for each in found if not concerns_ingress(each))
        left = differences(steps)
        if STARTING & set(_names(steps)):
            self.drifts.record(index_of(order.slot_id), found, left, order)
            self.outcomes.report_interruption(slot, order)
            self._start_slice(slot, order, body, halt, asked=True, repaired=left)
            return
        seen, unreached_ = observe(order, wanted, self.host), self._unreached(wanted, body)
        self.drifts.record(
            index_of(order.slot_id), found, (*left, *_lease_differences(seen), *unreached_), order
        )
        self.outcomes.report_address(slot, order, seen)
        # This is reported before the order is complete too: an ingress rule that cannot be repaired must not delay
        # the report on the others.
        lost = lost_ingress((*left, *unreached_))
        self.outcomes.report_exposure(slot, order, lost, others=has_foreign_ingress(left))
        if not held.applied and not any(map(concerns_ingress, left)):
            self.outcomes.report_applied(slot, order)
            return
        if asked and held.applied and held.outcome is not None:
            self.outcomes.record_outcome(slot, order, held.outcome, asked=True)

    def _start_slice(
        self,
        slot: Slot,
        order: Order,
        body: ApplySlice,
        halt: Halt,
        *,
        asked: bool,
        repaired: tuple[Difference, ...] = (),
    ) -> None:
        self._leave(order)
        self.outcomes.report(
            slot, order, SliceStarting(slot_id=order.slot_id, allocation_id=order.allocation_id)
        )
        outcome = bring_up(
            order, body, self.host, halt, lambda seen: self.outcomes.report_address(slot, order, seen)
        )
        self.outcomes.record_outcome(slot, order, outcome, asked=asked)
        self._after_start(order, body, outcome, repaired)

    def _after_start(
        self,
        order: Order,
        body: ApplySlice,
        outcome: SliceReady | SliceFailed,
        repaired: tuple[Difference, ...],
    ) -> None:
        """Update the drift of a slot after the start of its slice. A DHCP lease of another address is drift (ALC-9)."""
        index = index_of(order.slot_id)
        match outcome:
            case SliceReady():
                self._watch(order, body)
                self.drifts.record(index, repaired, cause=order)
            case SliceFailed(reason=Reason(code="lease_mismatch", message=found)):
                wanted = (
                    f"a DHCP lease of {order.body.network.private_ip} to {order.body.network.mac_address}"
                )
                self.drifts.record(index, left=(Difference("lease.foreign", wanted, found),), cause=order)
            case SliceFailed():
                pass
            case _:
                assert_never(outcome)

    def _repair(self, wanted: Slice, steps: Steps, halt: Halt) -> tuple[tuple[Difference, ...], Steps]:
        """Repair the drift of a ready slice without a change to its guest. The slice stays ready if the repair fails.

        Return the differences that were found, and the steps that are still due when the host is read again. Without a
        running guest nothing is repaired, because the interruption must be reported before a new start. If the host
        becomes unreadable, all steps count as due.
        """
        if not steps or STARTING & set(_names(steps)):
            return (), steps
        begun = [*steps]

        def begin(more: Sequence[Step]) -> None:
            if STARTING & set(_names(more)):
                raise _GuestNotRunning("the guest stopped or was paused during the repair")
            begun.extend(more)

        try:
            for refusal in repair(wanted, self.host, halt, begin):
                log.warning("slice_drift_not_repaired", reason=str(refusal))
        except (HostUnreadable, _GuestNotRunning) as failure:
            log.warning("slice_drift_not_repaired", reason=str(failure))
        found = newest(each.repairs for each in begun if each.repairs is not None)
        try:
            left = planned(wanted, self.host)
        except HostUnreadable:
            return found, tuple(begun)
        log.info(
            "slice_drift_repair_ended",
            drift_kinds=[each.kind for each in found],
            remaining_steps=_names(left),
        )
        return found, left


def _names(steps: Iterable[Step]) -> tuple[str, ...]:
    return tuple(step.name for step in steps)


def _differences_from_stopped(steps: Iterable[Step], on: Sequence[str]) -> tuple[Difference, ...]:
    """Return the drift of a stopped slice: the differences that the stop steps repair, and the parts that still run."""
    return (*differences(steps), *_occupied(on))


def _occupied(found: Sequence[str]) -> tuple[Difference, ...]:
    return (occupied(found),) if found else ()


def _lease_differences(seen: SliceAddress) -> tuple[Difference, ...]:
    """Return the drift of a slice with an expired or absent DHCP lease, which only the guest can renew."""
    # dnsmasq deletes a lease when it expires.
    found = {"expired": "it has expired", "none": "there is none"}.get(seen.lease_state)
    if found is None:
        return ()
    return (Difference("lease.expired", f"a valid DHCP lease of {seen.expected_ip} to {seen.mac}", found),)
