"""Order acceptance: check that an order is for this node and not older than the slot's stored order (the fence), store
it on disk, then change the host.

`accept` handles orders from the queue. Orders in a response with the node's desired state are first all checked and
stored (`admit`) and then executed (`carry_out`). `reconcile_slot` reconciles a slot with the order that it already
stores (after a restart and in a survey). All three execute an order by the same code (`SlotWork`). A refused order is
reported and has no effect.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog
from structlog.contextvars import bound_contextvars

from events.traces import trace_id
from events.values import SlotId, index_of
from node_agent.host.slices import HostUnreadable
from node_agent.slots.fence import FenceEntry, Refused, digest_of
from node_agent.slots.slot_work import SlotWork
from node_agent.slots.slots import Admission, Slot, Slots
from node_agent.transport.reporter import Reporter
from tasks.agent_api import HeldOrder, HeldOrders
from tasks.orders import Order
from tasks.reports import OrderRefused

log = structlog.get_logger(__name__)


class Acceptance:
    """Acceptance and execution of a node's orders. Thread-safe.

    After `close`, orders are still checked and stored on disk, but not executed; the next start of the agent executes
    them.
    """

    def __init__(self, slots: Slots, work: SlotWork, reporter: Reporter) -> None:
        self.slots = slots
        self._work = work
        self._reporter = reporter

    def accept(self, order: Order) -> None:
        """Check, store and execute an order; return when it is done, refused, superseded, or already being executed.

        Raises `OSError` when the disk cannot be written; an order that was not written has no effect.
        """
        with _log_context(order):
            slot = self.admit(order)
            if slot is not None:
                self._run(slot, order)

    def admit(self, order: Order, *, was_sent: bool = True) -> Slot | None:
        """Store an order without executing it, unless it is refused (for example, because the slot's stored order is
        newer).

        Return the slot to work on, or None if there is nothing to do. A refusal is reported. There is one exception: if
        the order came in a response to the node's own request (`was_sent=False`), it is not reported that the stored
        order is newer.
        """
        with _log_context(order):
            try:
                slot, admission = self.admit_or_raise(order)
            except Refused as refused:
                log.warning("order_refused", code=refused.code, reason=refused.reason.message)
                if was_sent or refused.code != "stale_token":
                    self._report_refused(order, refused)
                return None
            return None if admission == "under_way" else slot

    def admit_or_raise(self, order: Order) -> tuple[Slot, Admission]:
        """Store an order as `admit` does, but raise `Refused` instead of reporting a refusal.

        Also raises `OSError`.
        """
        slot = self.slots.of(order)
        admission = slot.admit(order)
        log.info("order_accepted_for_execution", kind=order.body.kind, admission=admission)
        return slot, admission

    def carry_out(self, order: Order) -> None:
        """Execute an order that `admit` stored; return when it is done, superseded, or already being executed. Raises
        `OSError`.
        """
        with _log_context(order):
            self._run(self.slots.of(order), order)

    def held(self) -> HeldOrders:
        """Return the fence token and digest of each slot's stored order, for comparison by the control plane."""
        stored = [(slot.slot_id, slot.held) for slot in self.slots]
        return HeldOrders(held=tuple(_summary(slot, held) for slot, held in stored if held is not None))

    def report_interrupted(self) -> list[Slot]:
        """Report slices that stopped while no agent was running, and return the slots that need work.

        All of these slices are reported before any of them is started again.
        """
        return self._matching(self._notice)[0]

    def due(self) -> tuple[list[Slot], list[HostUnreadable]]:
        """Return the slots for which work or a report is due, and an error for each slot with a state that cannot be
        read.
        """
        return self._matching(self._is_due)

    def reconcile_slot(self, slot: Slot) -> None:
        """Reconcile a slot with its stored order. Do nothing while another thread works on the slot."""
        held = slot.held
        if held is None:
            return
        with _log_context(held.order), slot.working() as halt:
            newest = slot.held
            if halt is not None and newest is not None:
                self._work.run(slot, newest, halt, asked=False)

    def close(self) -> None:
        """Halt the work on all slots. A step that has begun is finished."""
        self.slots.close()

    def _report_refused(self, order: Order, refused: Refused) -> None:
        refusal = OrderRefused(order_id=order.order_id, slot_id=order.slot_id, reason=refused.reason)
        self._reporter.report(refusal, order)

    def _notice(self, slot: Slot, held: FenceEntry) -> bool:
        with _log_context(held.order), slot.working() as halt:
            return halt is not None and self._work.notice(slot, held)

    def _is_due(self, _slot: Slot, held: FenceEntry) -> bool:
        return self._work.is_due(held)

    def _matching(
        self, condition: Callable[[Slot, FenceEntry], bool]
    ) -> tuple[list[Slot], list[HostUnreadable]]:
        matching, errors = list[Slot](), list[HostUnreadable]()
        for slot in self.slots:
            held = slot.held
            try:
                if held is not None and condition(slot, held):
                    matching.append(slot)
            except HostUnreadable as unreadable:
                log.warning("slot_state_unreadable_on_host", slot_id=slot.slot_id, reason=str(unreadable))
                errors.append(unreadable)
        return matching, errors

    def _run(self, slot: Slot, order: Order) -> None:
        with slot.working(order) as halt:
            held = slot.held
            if halt is None or held is None or _superseded(held, order):
                return
            self._work.run(slot, held, halt, asked=True)


def _summary(slot: SlotId, held: FenceEntry) -> HeldOrder:
    epoch, position = held.order.token
    return HeldOrder(index=index_of(slot), epoch=epoch, position=position, sha256=digest_of(held))


def _superseded(held: FenceEntry, order: Order) -> bool:
    return held.order.token != order.token


@contextmanager
def _log_context(order: Order) -> Iterator[None]:
    with bound_contextvars(
        order_id=str(order.order_id),
        slot_id=order.slot_id,
        allocation_id=order.allocation_id,
        trace_id=trace_id(order.trace_context),
    ):
        yield
