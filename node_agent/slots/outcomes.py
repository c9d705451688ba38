"""Reports about the work on a slot. No report is made for a superseded order.

An outcome is stored with its order before it is reported, and marked as reported afterwards, so a crash in between
repeats the report. Each report is made while the slot's order cannot change (`Slot.while_current`).
"""

from dataclasses import dataclass

from events.values import IngressId
from node_agent.slots.fence import FenceEntry, Outcome
from node_agent.slots.slots import Slot
from node_agent.transport.reporter import Reporter
from tasks.failpoints import failpoint
from tasks.orders import Order
from tasks.reasons import InterruptionCode
from tasks.reports import (
    Reason,
    ReportBody,
    SliceAddress,
    SliceIngressObserved,
    SliceInterrupted,
    SliceStopped,
)


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Reporter of the outcomes of all slots of a node. Every method raises `OSError` if the disk fails."""

    reporter: Reporter

    def record_outcome(self, slot: Slot, order: Order, outcome: Outcome, *, asked: bool) -> None:
        """Store the outcome of an order. Report it if it is new, or if the order requests a report (`asked`)."""
        with slot.while_current(order) as held:
            if held is None:
                return
            kept = held
            if held.outcome != outcome:
                kept = held.model_copy(update={"outcome": outcome, "reported": False})
                slot.keep(kept)
            if asked or not kept.reported:
                failpoint("agent.outcome.kept")
                self.reporter.report(outcome, order)
                failpoint("agent.outcome.reported")
            if not kept.reported:
                # This write is not flushed: if the host loses it, the outcome is only reported twice.
                slot.keep(kept.model_copy(update={"reported": True}), durable=False)

    def report_pending(self, slot: Slot, held: FenceEntry) -> None:
        """Report a stored outcome that a crash kept from being reported.

        This report must precede any other report about the slice: an interruption, for example, is reported only of a
        slice that was reported as ready.
        """
        if held.outcome is not None and not held.reported:
            self.record_outcome(slot, held.order, held.outcome, asked=True)

    def report(self, slot: Slot, order: Order, body: ReportBody) -> None:
        """Report an observation about a slice, unless its order is superseded. The observation is not stored as the
        order's outcome.
        """
        with slot.while_current(order) as held:
            if held is not None:
                self.reporter.report(body, order)

    def report_interruption(self, slot: Slot, order: Order) -> None:
        """Report that a slice that was ready does not run, and discard the stored outcome `SliceReady`."""
        code: InterruptionCode = "machine_not_running"
        message = "the slice's machine is not running: it or its host stopped without an order"
        reason = Reason(code=code, message=message)
        interrupted = SliceInterrupted(
            slot_id=order.slot_id, allocation_id=order.allocation_id, reason=reason
        )
        with slot.while_current(order) as held:
            if held is not None:
                self.reporter.report(interrupted, order)
                failpoint("agent.interrupted.reported")
                initial = {"outcome": None, "applied": True, "lost": (), "others": False}
                slot.keep(held.model_copy(update=initial))

    def report_address(self, slot: Slot, order: Order, seen: SliceAddress) -> None:
        """Report the observed address of the slice if it changed."""
        with slot.while_current(order) as held:
            if held is not None and address_changed(held.address, seen):
                self.reporter.report(seen, order)
                slot.keep(held.model_copy(update={"address": seen}))

    def report_exposure(self, slot: Slot, order: Order, lost: tuple[IngressId, ...], *, others: bool) -> None:
        """Report the ingress rules that do not lead to the slice (`lost`), and whether foreign rules may lead to it
        (`others`), if either value changed.
        """
        exposed = SliceIngressObserved(
            slot_id=order.slot_id, allocation_id=order.allocation_id, lost=lost, others=others
        )
        with slot.while_current(order) as held:
            if held is not None and (held.lost, held.others) != (lost, others):
                self.reporter.report(exposed, order)
                slot.keep(held.model_copy(update={"lost": lost, "others": others}))

    def report_applied(self, slot: Slot, order: Order) -> None:
        """Record that a ready slice complies with a changed order, and report that it is ready under this order."""
        with slot.while_current(order) as held:
            if held is None or held.outcome is None:
                return
            self.reporter.report(held.outcome, order)
            slot.keep(held.model_copy(update={"applied": True}))


def record_forced_stop(slot: Slot, order: Order) -> None:
    """Record that the guest of a slice is about to be powered off, because it did not shut down in time."""
    with slot.while_current(order) as held:
        if held is not None:
            # Record it before the guest is destroyed: once it is gone, the host does not show how it ended.
            slot.keep(held.model_copy(update={"forced": True}))


def stopped_outcome(slot: Slot, order: Order) -> SliceStopped:
    """Return the outcome `SliceStopped` of an order that stopped its slice."""
    held = slot.held
    forced = held is not None and held.forced
    return SliceStopped(slot_id=order.slot_id, allocation_id=order.allocation_id, forced=forced)


def address_changed(last: SliceAddress | None, seen: SliceAddress) -> bool:
    """Whether an observed address must be reported. The first observation is not reported if it shows no lease."""
    return seen != last if last is not None else seen.lease_state != "none"
