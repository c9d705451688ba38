"""What is said of a slot's work, at the slot's door: nothing for an order that a newer one superseded.

An outcome is written beside its order before it is said, and marked as told after: a crash between says it again.
"""

from dataclasses import dataclass

from events.values import IngressId
from node_agent.fence import Held, Outcome
from node_agent.reporter import Reporter
from node_agent.slots import Slot
from tasks.failpoints import failpoint
from tasks.orders import Order
from tasks.reasons import InterruptionCode
from tasks.reports import (
    Reason,
    ReportBody,
    SliceAddress,
    SliceExposed,
    SliceInterrupted,
    SliceStopped,
)


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Of all slots of a node. Every method raises `OSError` when the disk refuses."""

    reporter: Reporter

    def conclude(self, slot: Slot, order: Order, outcome: Outcome, *, asked: bool) -> None:
        """Keep what came of an order, and say it if it is new or `asked` for."""
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

    def say_untold(self, slot: Slot, held: Held) -> None:
        """First what a crash kept from being said: nothing may be told of a slice before that it was ready."""
        if held.outcome is not None and not held.told:
            self.conclude(slot, held.order, held.outcome, asked=True)

    def say(self, slot: Slot, order: Order, body: ReportBody) -> None:
        """Say what is no outcome, and is kept nowhere."""
        with slot.speaking_for(order) as held:
            if held is not None:
                self.reporter.tell(body, order)

    def interrupted(self, slot: Slot, order: Order) -> None:
        """A slice that was ready does not run; its outcome is none any more."""
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
                anew = {"outcome": None, "applied": True, "lost": (), "others": False}
                slot.keep(held.model_copy(update=anew))

    def address_seen(self, slot: Slot, order: Order, seen: SliceAddress) -> None:
        """Say what was seen of the slice's address, if it is news."""
        with slot.speaking_for(order) as held:
            if held is not None and is_news(held.address, seen):
                self.reporter.tell(seen, order)
                slot.keep(held.model_copy(update={"address": seen}))

    def exposure_seen(self, slot: Slot, order: Order, lost: tuple[IngressId, ...], *, others: bool) -> None:
        """Say which ways in do not lead to the slice and whether others may, if it is news."""
        exposed = SliceExposed(
            slot_id=order.slot_id, allocation_id=order.allocation_id, lost=lost, others=others
        )
        with slot.speaking_for(order) as held:
            if held is not None and (held.lost, held.others) != (lost, others):
                self.reporter.tell(exposed, order)
                slot.keep(held.model_copy(update={"lost": lost, "others": others}))

    def applied(self, slot: Slot, order: Order) -> None:
        """The order's change of a slice that is ready is made: it is that under this order too."""
        with slot.speaking_for(order) as held:
            if held is None or held.outcome is None:
                return
            self.reporter.tell(held.outcome, order)
            slot.keep(held.model_copy(update={"applied": True}))


def note_force(slot: Slot, order: Order) -> None:
    """Keep that the guest of a slice that is to be off is cut off."""
    with slot.speaking_for(order) as held:
        if held is not None:
            # Before it is: whoever finds it gone afterwards cannot tell how it went.
            slot.keep(held.model_copy(update={"forced": True}))


def proved_off(slot: Slot, order: Order) -> SliceStopped:
    """The outcome of an order to be off."""
    held = slot.held
    forced = held is not None and held.forced
    return SliceStopped(slot_id=order.slot_id, allocation_id=order.allocation_id, forced=forced)


def is_news(last: SliceAddress | None, seen: SliceAddress) -> bool:
    """No lease where none was seen before is nothing to report."""
    return seen != last if last is not None else seen.lease_state != "none"
