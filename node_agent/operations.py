"""Operations carried out: what is looked at or mended once, and the one report that ends each.

An operation on a slot brings the order that the slot should hold. That order passes the fence first, as any does:
what the slot was told since is never undone by an operation, and an order that is news here is kept and carried out
as usual, by the slot's own work. Then the operation looks, beside whatever goes on; or it mends, as the only one at
work on the slot.

Nothing of an operation stands on disk. The queue holds it until its end is spooled: an agent that dies in the middle
gets it again, and an agent that ends gives it back. Run again, it finds less to do, and is told again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

import structlog
from structlog.contextvars import bound_contextvars

from events.values import NodeId
from node_agent.accept import Acceptance
from node_agent.fence import Refused
from node_agent.halt import Halt, Halted, Late
from node_agent.host import Host
from node_agent.progress import NOBODY, Listener, telling
from node_agent.reporter import Reporter
from node_agent.running import AlreadyRunning, CameToNothing, Running
from node_agent.slices import HostUnreadable
from node_agent.slot_looks import look_at_slot
from node_agent.slot_mends import mend_slot
from node_agent.slots import Slot
from node_agent.steps import StepFailed
from node_agent.verification import verify_node
from tasks.broker import GivenBack
from tasks.catalogue import bounds_of
from tasks.failpoints import failpoint
from tasks.fields import line
from tasks.operations import (
    AddressReport,
    DriftReport,
    ExposureApply,
    ExposureRemove,
    LeaseApply,
    MachineInspect,
    NodeVerify,
    Operation,
    OperationCancel,
    OperationCancelled,
    OperationResult,
    PortReconcile,
    ReadinessPoll,
    SlotLook,
    SlotMend,
    VnicAttach,
)
from tasks.orders import Order
from tasks.reports import OperationDone, OperationFailed, Reason

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Operations:
    """Thread-safe. `look_after` hands a slot that holds something new to the slot's own work, and returns at once."""

    node_id: NodeId
    host: Host
    acceptance: Acceptance
    reporter: Reporter
    running: Running
    look_after: Callable[[Slot], None]
    listener: Listener = NOBODY

    def carry_out(self, operation: Operation) -> None:
        """Do it and tell how it ended. Raises `OSError` when the disk refuses that, and `GivenBack`."""
        with bound_contextvars(operation_id=str(operation.operation_id), kind=operation.body.kind):
            try:
                self._tell_end(operation)
            except AlreadyRunning:
                log.info("operation_already_running")

    def close(self) -> None:
        """Halt what runs; what has not ended is given back to the queue."""
        self.running.close()

    def _tell_end(self, operation: Operation) -> None:
        operation_id, end = operation.operation_id, self._end_of(operation)
        failpoint("agent.operation.ended")
        self.reporter.tell(end, operation)
        failpoint("agent.operation.told")
        log.info("operation_ended", operation_id=str(operation_id), how=end.kind)

    def _end_of(self, operation: Operation) -> OperationDone | OperationFailed:
        try:
            result = self._result_of(operation)
        except CameToNothing as nothing:
            log.warning("operation_failed", code=nothing.code, reason=nothing.why)
            reason = Reason(code=nothing.code, message=line(nothing.why))
            return OperationFailed(operation_id=operation.operation_id, reason=reason)
        return OperationDone(operation_id=operation.operation_id, result=result)

    def _result_of(self, operation: Operation) -> OperationResult:
        if operation.node_id != self.node_id:
            why = f"operation for {operation.node_id} came to {self.node_id}"
            raise CameToNothing("wrong_node", why)
        match operation.body:
            case OperationCancel(target=target):
                # Takes no place: however many operations run, this one finds a thread.
                return OperationCancelled(was_running=self.running.cancel(target))
            case _:
                return self._result_within_limit(operation)

    def _result_within_limit(self, operation: Operation) -> OperationResult:
        limit = bounds_of(operation.body.kind).time_limit
        with (
            self.running.place(operation.operation_id, limit) as halt,
            telling(self.listener, operation.operation_id),
        ):
            try:
                return self._carried_out(operation, halt)
            except Late:
                raise CameToNothing("time_limit", f"not done within {limit.total_seconds():.0f} s") from None
            except Halted:
                raise self._why_halted(operation) from None
            except HostUnreadable as unreadable:
                raise CameToNothing("host_unreadable", str(unreadable)) from None
            except StepFailed as failed:
                raise CameToNothing("step_refused", str(failed)) from None
            except Refused as refused:
                raise CameToNothing(refused.code, refused.reason.message) from None

    def _why_halted(self, operation: Operation) -> CameToNothing | GivenBack:
        if self.running.is_cancelled(operation.operation_id):
            return CameToNothing("cancelled", "it was told to stop, between two steps")
        if self.running.closing:
            return GivenBack()
        return CameToNothing("superseded", "a newer order of the slot came meanwhile")

    def _carried_out(self, operation: Operation, halt: Halt) -> OperationResult:
        match operation.body:
            case NodeVerify():
                return verify_node(self.host)
            case AddressReport() | ReadinessPoll() | DriftReport() | MachineInspect() as body:
                return self._look(body, halt)
            case VnicAttach() | PortReconcile() | LeaseApply() | ExposureApply() | ExposureRemove() as body:
                return self._mend(body, halt)
            case OperationCancel():
                raise AssertionError("a cancel takes no place")
            case body:
                assert_never(body)

    def _look(self, body: SlotLook, halt: Halt) -> OperationResult:
        slot, admission = self.acceptance.judge(body.wish)
        if admission == "news":
            self.look_after(slot)
        # No lock: a slice that is long in coming is just what people want to look at.
        return look_at_slot(body, self.host, halt, lambda: _still_wanted(slot, body.wish))

    def _mend(self, body: SlotMend, halt: Halt) -> OperationResult:
        slot, admission = self.acceptance.judge(body.wish)
        try:
            with slot.mending(halt) as is_ours:
                if not is_ours:
                    raise Halted
                _still_wanted(slot, body.wish)
                return mend_slot(body, self.host, halt)
        finally:
            if admission == "news":
                # After, or it would have to be waited for: a slice may take an hour to get ready.
                self.look_after(slot)


def _still_wanted(slot: Slot, wish: Order) -> None:
    """Raises `Halted` once the slot was told otherwise."""
    held = slot.held
    if held is None or held.order.token != wish.token:
        raise Halted
