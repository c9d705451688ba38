"""Taking an order: is it for us, does it pass the fence, then onto disk, and only then the host.

`accept` is for orders, however they came (queue or desired state); `look_after` is for what a slot holds already
(restart, survey). Both end in the same work. A refused order is reported and has no effect.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from structlog.contextvars import bound_contextvars

from node_agent.fence import Held, Refused
from node_agent.reporter import Reporter
from node_agent.slots import Admission, Slot, Slots
from node_agent.work import SlotWork
from tasks.orders import Order
from tasks.reports import OrderRefused

log = structlog.get_logger(__name__)


class Acceptance:
    """Thread-safe. After `close` orders still pass the fence onto disk, for the next start to carry out."""

    def __init__(self, slots: Slots, work: SlotWork, reporter: Reporter) -> None:
        self.slots = slots
        self._work = work
        self._reporter = reporter

    def accept(self, order: Order) -> None:
        """Carry the order out, and return when it is done, refused, superseded, or already under way.

        Raises `OSError` when the disk refuses; what was not written had no effect.
        """
        with _bound(order):
            slot = self.admit(order)
            if slot is not None:
                self._run(slot, order)

    def admit(self, order: Order) -> Slot | None:
        """Only the fence and the disk; the slot to work on, or None if there is nothing to do."""
        with _bound(order):
            try:
                slot, admission = self.judge(order)
            except Refused as refused:
                log.warning("order_refused", code=refused.reason.code, reason=refused.reason.message)
                refusal = OrderRefused(order_id=order.order_id, slot_id=order.slot_id, reason=refused.reason)
                self._reporter.tell(refusal, order)
                return None
            return None if admission == "under_way" else slot

    def judge(self, order: Order) -> tuple[Slot, Admission]:
        """The same, and nothing is said of a refusal: raises `Refused`, and `OSError`."""
        slot = self.slots.of(order)
        admission = slot.admit(order)
        log.info("order_admitted", kind=order.body.kind, admission=admission)
        return slot, admission

    def is_due(self, slot: Slot) -> bool:
        """Whether `look_after` would do or say anything. Raises `HostUnreadable`."""
        held = slot.held
        return held is not None and self._work.is_due(held)

    def notice(self, slot: Slot) -> None:
        """Report a slice that stopped while no agent was there, before anything is done about it."""
        held = slot.held
        if held is None:
            return
        with _bound(held.order), slot.working() as halt:
            if halt is not None:
                self._work.notice(slot, held)

    def look_after(self, slot: Slot) -> None:
        """Bring the slot back to what it holds, if that is not so; skipped while somebody works on it."""
        held = slot.held
        if held is None:
            return
        with _bound(held.order), slot.working() as halt:
            newest = slot.held
            if halt is not None and newest is not None:
                self._work.run(slot, newest, halt, asked=False)

    def close(self) -> None:
        """Halt all work; a step that has begun is finished."""
        self.slots.close()

    def _run(self, slot: Slot, order: Order) -> None:
        with slot.working(order) as halt:
            held = slot.held
            if halt is None or held is None or _superseded(held, order):
                return
            self._work.run(slot, held, halt, asked=True)


def _superseded(held: Held, order: Order) -> bool:
    return held.order.token != order.token


@contextmanager
def _bound(order: Order) -> Iterator[None]:
    with bound_contextvars(
        order_id=str(order.order_id), slot_id=order.slot_id, allocation_id=order.allocation_id
    ):
        yield
