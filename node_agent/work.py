"""What is done for a slot, given what it holds: one decision for orders, restarts and surveys.

    holds              found               done                                said
    apply, no outcome  anything            brought up                          starting, ready or failed
    apply, ready       as ordered          nothing                             (ready, if asked)
    apply, ready       machine not running brought up again                    interrupted, starting, ready or failed
    apply, ready       anything else       what differs, the guest untouched   (ready, if asked)
    apply, failed      not looked at       nothing: a new order is wanted      (failed, if asked)
    stop, stopped      as ordered          nothing                             (stopped, if asked)
    stop, stopped      anything else       switched off again                  (stopped, if asked)
    stop, else         anything            switched off                        stopped or remains, if new or asked
    remove, removed    looked at if asked  away again, if there is anything    (removed, if asked)
    remove, else       anything            taken down                          removed or remains, if new or asked

Everything is said at the slot's door, so that nothing is said for an order that a newer one superseded. An outcome is
written beside its order before it is said, and marked as told after: a crash between says it again, and a slice that
was said to be ready can never be found dead without that being said too.
"""

from dataclasses import dataclass

import structlog

from node_agent.bringing_up import bring_up, observe
from node_agent.converge import leftovers, make, planned, planned_off, still_on, switch_off
from node_agent.fence import Held, Outcome
from node_agent.halt import Halt, Halted
from node_agent.host import STARTING, Host
from node_agent.progress import NOBODY, Listener, telling
from node_agent.reporter import Reporter
from node_agent.slices import HostUnreadable, SliceNetwork
from node_agent.slots import Slot
from node_agent.steps import StepFailed
from node_agent.switching_off import shut_off
from node_agent.taking_down import remains, removed, take_down
from node_agent.wanted import network_of, slice_of
from tasks.failpoints import failpoint
from tasks.orders import ApplySlice, Order, RemoveSlice, StopSlice
from tasks.reasons import InterruptionCode
from tasks.reports import (
    Reason,
    ReportBody,
    SliceAddress,
    SliceFailed,
    SliceInterrupted,
    SliceReady,
    SliceRemoved,
    SliceStarting,
    SliceStopped,
)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SlotWork:
    """Does a slot's work; the caller holds the slot's work lock. `asked` says whether an order asks what came of it."""

    host: Host
    reporter: Reporter
    listener: Listener = NOBODY
    """Hears each step."""

    def run(self, slot: Slot, held: Held, halt: Halt, *, asked: bool) -> None:
        """Raises `OSError` when the disk refuses, else reports what went wrong."""
        try:
            self._say_untold(slot, held)
            with telling(self.listener, held.order.order_id):
                self._carry_out(slot, held, halt, asked=asked)
        except Halted:
            log.info("work_halted")
        except HostUnreadable as unreadable:
            # Only looks outside an attempt come here; the next survey looks again.
            log.warning("host_unreadable", reason=str(unreadable))

    def notice(self, slot: Slot, held: Held) -> bool:
        """Say so if a slice that was ready does not run; whether `run` would do or say anything.

        Raises `HostUnreadable`, `OSError`.
        """
        self._say_untold(slot, held)
        undone = self._undone(held)
        if STARTING & undone:
            self._interrupted(slot, held.order)
        return bool(undone)

    def is_due(self, held: Held) -> bool:
        """Whether `run` would do or say anything unasked. Raises `HostUnreadable`."""
        return not held.told or bool(self._undone(held))

    def _undone(self, held: Held) -> frozenset[str]:
        """What a look at the host finds to do: names of steps, or a word where it is no step."""
        match held.order.body, held.outcome:
            case ApplySlice() as body, SliceReady():
                wanted = slice_of(held.order, body)
                steps = planned(wanted, self.host)
                is_told = not _is_news(held.address, observe(held.order, wanted, self.host))
                return frozenset(steps if is_told else (*steps, "address"))
            case StopSlice(network=network), SliceStopped():
                return frozenset(planned_off(network_of(held.order.slot_id, network), self.host))
            case _, SliceFailed() | SliceRemoved():
                return frozenset()
            case _:
                return frozenset({"order"})

    def _carry_out(self, slot: Slot, held: Held, halt: Halt, *, asked: bool) -> None:
        match held.order.body:
            case ApplySlice() as body:
                self._apply(slot, held, body, halt, asked=asked)
            case StopSlice() as body:
                self._stop(slot, held, body, halt, asked=asked)
            case RemoveSlice() as body:
                self._remove(slot, held, body, halt, asked=asked)

    def _apply(self, slot: Slot, held: Held, body: ApplySlice, halt: Halt, *, asked: bool) -> None:
        match held.outcome:
            case SliceReady():
                self._keep_up(slot, held, body, halt, asked=asked)
            case SliceFailed() as failed:
                self._conclude(slot, held.order, failed, asked=asked)
            case _:
                self._bring_up(slot, held.order, body, halt, asked=asked)

    def _stop(self, slot: Slot, held: Held, body: StopSlice, halt: Halt, *, asked: bool) -> None:
        order, stopped = held.order, network_of(held.order.slot_id, body.network)
        if isinstance(held.outcome, SliceStopped) and not (asked and still_on(stopped, self.host)):
            self._keep_off(stopped, halt)
            if asked:
                self._conclude(slot, order, held.outcome, asked=True)
            return
        left = shut_off(order, body, self.host, halt, lambda: _note_force(slot, order))
        self._conclude(slot, order, remains(order, left) if left else _stopped(slot, order), asked=asked)

    def _keep_off(self, stopped: SliceNetwork, halt: Halt) -> None:
        """It was proved off, and is to stay so, whatever comes of this."""
        if steps := planned_off(stopped, self.host):
            refusals = [str(each) for each in switch_off(stopped, self.host, halt)]
            (log.warning if refusals else log.info)("switched_off_again", steps=steps, refusals=refusals)

    def _remove(self, slot: Slot, held: Held, body: RemoveSlice, halt: Halt, *, asked: bool) -> None:
        if isinstance(held.outcome, SliceRemoved):
            if not asked:
                return
            if not leftovers(network_of(held.order.slot_id, body.network), self.host):
                self._conclude(slot, held.order, removed(held.order, self.host), asked=True)
                return
        self._conclude(slot, held.order, take_down(held.order, body, self.host, halt), asked=asked)

    def _keep_up(self, slot: Slot, held: Held, body: ApplySlice, halt: Halt, *, asked: bool) -> None:
        order, wanted = held.order, slice_of(held.order, body)
        steps = planned(wanted, self.host)
        if STARTING & set(steps):
            self._interrupted(slot, order)
            self._bring_up(slot, order, body, halt, asked=True)
            return
        if steps:
            self._repair(order, body, steps, halt)
        self._address_seen(slot, order, observe(order, wanted, self.host))
        if asked and held.outcome is not None:
            self._conclude(slot, order, held.outcome, asked=True)

    def _bring_up(self, slot: Slot, order: Order, body: ApplySlice, halt: Halt, *, asked: bool) -> None:
        self._say(slot, order, SliceStarting(slot_id=order.slot_id, allocation_id=order.allocation_id))
        outcome = bring_up(order, body, self.host, halt, lambda seen: self._address_seen(slot, order, seen))
        self._conclude(slot, order, outcome, asked=asked)

    def _repair(self, order: Order, body: ApplySlice, steps: tuple[str, ...], halt: Halt) -> None:
        """Only what differs, around a guest that runs: it was ready and stays so, whatever comes of this."""
        try:
            make(slice_of(order, body), self.host, halt)
            log.info("drift_repaired", steps=steps)
        except StepFailed as failure:
            log.warning("drift_not_repaired", failed=failure.step, reason=str(failure))

    def _interrupted(self, slot: Slot, order: Order) -> None:
        code: InterruptionCode = "machine_not_running"
        message = "the machine was found not running: it or its host went down without an order"
        reason = Reason(code=code, message=message)
        interrupted = SliceInterrupted(
            slot_id=order.slot_id, allocation_id=order.allocation_id, reason=reason
        )
        with slot.speaking_for(order) as held:
            if held is not None:
                self.reporter.tell(interrupted, order)
                failpoint("agent.interrupted.told")
                slot.keep(held.model_copy(update={"outcome": None}))

    def _say_untold(self, slot: Slot, held: Held) -> None:
        """First what a crash kept from being said: nothing may be told of a slice before that it was ready."""
        if held.outcome is not None and not held.told:
            self._conclude(slot, held.order, held.outcome, asked=True)

    def _conclude(self, slot: Slot, order: Order, outcome: Outcome, *, asked: bool) -> None:
        with slot.speaking_for(order) as held:
            if held is None:
                return
            kept = held
            if held.outcome != outcome:
                kept = held.model_copy(update={"outcome": outcome, "told": False})
                slot.keep(kept)
            if asked or not kept.told:
                failpoint("agent.outcome.kept")
                self.reporter.tell(outcome, order)
                failpoint("agent.outcome.told")
            if not kept.told:
                # Not flushed: lost with the host, the outcome is only said twice.
                slot.keep(kept.model_copy(update={"told": True}), durable=False)

    def _address_seen(self, slot: Slot, order: Order, seen: SliceAddress) -> None:
        with slot.speaking_for(order) as held:
            if held is not None and _is_news(held.address, seen):
                self.reporter.tell(seen, order)
                slot.keep(held.model_copy(update={"address": seen}))

    def _say(self, slot: Slot, order: Order, body: ReportBody) -> None:
        with slot.speaking_for(order) as held:
            if held is not None:
                self.reporter.tell(body, order)


def _note_force(slot: Slot, order: Order) -> None:
    with slot.speaking_for(order) as held:
        if held is not None:
            # Before the guest is cut off: whoever finds it gone afterwards cannot tell how it went.
            slot.keep(held.model_copy(update={"forced": True}))


def _stopped(slot: Slot, order: Order) -> SliceStopped:
    held = slot.held
    forced = held is not None and held.forced
    return SliceStopped(slot_id=order.slot_id, allocation_id=order.allocation_id, forced=forced)


def _is_news(last: SliceAddress | None, seen: SliceAddress) -> bool:
    """No lease where none was seen before is nothing to report."""
    return seen != last if last is not None else seen.lease_state != "none"
