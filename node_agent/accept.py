"""Taking an order: is it for us, does it pass the fence, then onto disk, and only then the host.

`accept` is for orders from the queue. Those of the desired state are all admitted (`admit`), and then carried out
(`carry_out`). `look_after` is for what a slot holds already (restart, survey). All end in the same work. A refused
order is reported and has no effect.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog
from structlog.contextvars import bound_contextvars

from events.values import SlotId, index_of
from node_agent.fence import Held, Refused, digest_of
from node_agent.reporter import Reporter
from node_agent.slices import HostUnreadable
from node_agent.slots import Admission, Slot, Slots
from node_agent.work import SlotWork
from tasks.agent_api import HeldOrder, HeldOrders
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

    def admit(self, order: Order, *, was_sent: bool = True) -> Slot | None:
        """Only the fence and the disk; the slot to work on, or None if there is nothing to do.

        A refusal is reported; but where a newer order overtook one that was not sent but asked for, nothing is wrong.
        """
        with _bound(order):
            try:
                slot, admission = self.judge(order)
            except Refused as refused:
                log.warning("order_refused", code=refused.code, reason=refused.reason.message)
                if was_sent or refused.code != "stale_token":
                    self._tell_refused(order, refused)
                return None
            return None if admission == "under_way" else slot

    def judge(self, order: Order) -> tuple[Slot, Admission]:
        """The same, and nothing is said of a refusal: raises `Refused`, and `OSError`."""
        slot = self.slots.of(order)
        admission = slot.admit(order)
        log.info("order_admitted", kind=order.body.kind, admission=admission)
        return slot, admission

    def carry_out(self, order: Order) -> None:
        """An order that passed the fence. Returns as `accept` does; raises `OSError`."""
        with _bound(order):
            self._run(self.slots.of(order), order)

    def held(self) -> HeldOrders:
        """What each slot holds, for the control plane to compare."""
        holding = [(slot.slot_id, slot.held) for slot in self.slots]
        return HeldOrders(held=tuple(_told(slot, held) for slot, held in holding if held is not None))

    def notice_all(self) -> list[Slot]:
        """As `due`; slices that stopped while no agent was there are reported before anything is done about it."""
        return self._seen(self._notice)[0]

    def due(self) -> tuple[list[Slot], list[HostUnreadable]]:
        """Slots where `look_after` would do or say something, and why others could not be looked at."""
        return self._seen(self._is_due)

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

    def _tell_refused(self, order: Order, refused: Refused) -> None:
        refusal = OrderRefused(order_id=order.order_id, slot_id=order.slot_id, reason=refused.reason)
        self._reporter.tell(refusal, order)

    def _notice(self, slot: Slot, held: Held) -> bool:
        with _bound(held.order), slot.working() as halt:
            return halt is not None and self._work.notice(slot, held)

    def _is_due(self, _slot: Slot, held: Held) -> bool:
        return self._work.is_due(held)

    def _seen(self, look: Callable[[Slot, Held], bool]) -> tuple[list[Slot], list[HostUnreadable]]:
        seen, unread = list[Slot](), list[HostUnreadable]()
        for slot in self.slots:
            held = slot.held
            try:
                if held is not None and look(slot, held):
                    seen.append(slot)
            except HostUnreadable as unreadable:
                log.warning("slot_unreadable", slot_id=slot.slot_id, reason=str(unreadable))
                unread.append(unreadable)
        return seen, unread

    def _run(self, slot: Slot, order: Order) -> None:
        with slot.working(order) as halt:
            held = slot.held
            if halt is None or held is None or _superseded(held, order):
                return
            self._work.run(slot, held, halt, asked=True)


def _told(slot: SlotId, held: Held) -> HeldOrder:
    epoch, position = held.order.token
    return HeldOrder(index=index_of(slot), epoch=epoch, position=position, sha256=digest_of(held))


def _superseded(held: Held, order: Order) -> bool:
    return held.order.token != order.token


@contextmanager
def _bound(order: Order) -> Iterator[None]:
    with bound_contextvars(
        order_id=str(order.order_id), slot_id=order.slot_id, allocation_id=order.allocation_id
    ):
        yield
