"""Execution of operations: one-off inspections and repairs, each of which ends with one report.

An operation on a slot contains the slot's newest order. That order is first compared with the slot's stored order, like
every order (`node_agent.slots.fence`): an operation never reverts a newer order, and an order that is new to the node
is stored and executed as usual. Then an inspection runs concurrently with other work, and a repair runs with exclusive
access to the slot.

An operation is not stored on disk. The queue keeps the operation until its result is spooled: after a crash the agent
receives it again, and an agent that stops requeues it. A repair that is executed again runs only the steps that are
still required, and reports its result again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

import structlog
from structlog.contextvars import bound_contextvars

from events.traces import trace_id
from events.values import NodeId
from node_agent.host.host import Host
from node_agent.host.slices import HostUnreadable
from node_agent.operations.running_operations import AlreadyRunning, OperationError, RunningOperations
from node_agent.operations.slot_inspections import inspect_slot
from node_agent.operations.slot_repairs import repair_slot
from node_agent.operations.verification import verify_node
from node_agent.runtime.halt import Halt, Halted, TimeLimitReached
from node_agent.slots.accept import Acceptance
from node_agent.slots.fence import Refused
from node_agent.slots.slots import Slot
from node_agent.slots.steps import StepFailed
from node_agent.transport.broker import RequeueOrder
from node_agent.transport.progress import NO_LISTENER, ProgressListener, reporting_progress
from node_agent.transport.reporter import Reporter
from tasks.catalogue import bounds_of
from tasks.failpoints import failpoint
from tasks.fields import line
from tasks.operations import (
    AddressReport,
    DriftReport,
    IngressApply,
    IngressRemove,
    LeaseApply,
    MachineInspect,
    NodeVerify,
    Operation,
    OperationCancel,
    OperationCancelled,
    OperationResult,
    PortReconcile,
    ReadinessPoll,
    SlotInspection,
    SlotRepair,
    VnicAttach,
)
from tasks.orders import Order
from tasks.reports import OperationDone, OperationFailed, Reason

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Operations:
    """Executor of the operations that the control plane sends to this node. Thread-safe.

    If an operation contains a newer order than the slot's stored order, `reconcile_slot` is called to execute that
    order; it must start the work and return at once.
    """

    node_id: NodeId
    host: Host
    acceptance: Acceptance
    reporter: Reporter
    running: RunningOperations
    reconcile_slot: Callable[[Slot], None]
    listener: ProgressListener = NO_LISTENER

    def carry_out(self, operation: Operation) -> None:
        """Execute an operation and report its result. Raises `OSError` if the disk fails, and `RequeueOrder` if the
        operation cannot begin now.
        """
        with bound_contextvars(
            operation_id=str(operation.operation_id),
            kind=operation.body.kind,
            trace_id=trace_id(operation.trace_context),
        ):
            try:
                self._report_result(operation)
            except AlreadyRunning:
                log.info("second_delivery_of_running_operation_ignored")

    def close(self) -> None:
        """Halt running operations; the tasks of unfinished operations are requeued."""
        self.running.close()

    def _report_result(self, operation: Operation) -> None:
        operation_id, end = operation.operation_id, self._outcome_of(operation)
        failpoint("agent.operation.ended")
        self.reporter.report(end, operation)
        failpoint("agent.operation.reported")
        log.info("operation_ended", operation_id=str(operation_id), result=end.kind)

    def _outcome_of(self, operation: Operation) -> OperationDone | OperationFailed:
        try:
            result = self._result_of(operation)
        except OperationError as error:
            log.warning("operation_failed", code=error.code, reason=error.reason)
            reason = Reason(code=error.code, message=line(error.reason))
            return OperationFailed(operation_id=operation.operation_id, reason=reason)
        return OperationDone(operation_id=operation.operation_id, result=result)

    def _result_of(self, operation: Operation) -> OperationResult:
        if operation.node_id != self.node_id:
            reason = f"an operation for node {operation.node_id} was sent to node {self.node_id}"
            raise OperationError("wrong_node", reason)
        match operation.body:
            case OperationCancel(target=target):
                # A cancel does not count toward the limit, so it gets a thread however many operations run.
                return OperationCancelled(was_running=self.running.cancel(target))
            case _:
                return self._result_within_limit(operation)

    def _result_within_limit(self, operation: Operation) -> OperationResult:
        limit = bounds_of(operation.body.kind).time_limit
        with (
            self.running.place(operation.operation_id, limit) as halt,
            reporting_progress(self.listener, operation.operation_id),
        ):
            try:
                return self._execute(operation, halt)
            except TimeLimitReached:
                raise OperationError(
                    "time_limit", f"the operation did not finish within {limit.total_seconds():.0f} s"
                ) from None
            except Halted:
                raise self._halt_cause(operation) from None
            except HostUnreadable as unreadable:
                raise OperationError("host_unreadable", str(unreadable)) from None
            except StepFailed as failed:
                raise OperationError("step_refused", str(failed)) from None
            except Refused as refused:
                raise OperationError(refused.code, refused.reason.message) from None

    def _halt_cause(self, operation: Operation) -> OperationError | RequeueOrder:
        if self.running.is_cancelled(operation.operation_id):
            return OperationError("cancelled", "the operation was cancelled between two steps")
        if self.running.closing:
            return RequeueOrder()
        return OperationError(
            "superseded", "the operation was halted, because the slot received a newer order"
        )

    def _execute(self, operation: Operation, halt: Halt) -> OperationResult:
        match operation.body:
            case NodeVerify():
                return verify_node(self.host)
            case AddressReport() | ReadinessPoll() | DriftReport() | MachineInspect() as body:
                return self._inspect(body, halt)
            case VnicAttach() | PortReconcile() | LeaseApply() | IngressApply() | IngressRemove() as body:
                return self._repair(body, halt)
            case OperationCancel():
                raise AssertionError(
                    "_execute received the operation operation.cancel, which _result_of must handle"
                )
            case body:
                assert_never(body)

    def _inspect(self, body: SlotInspection, halt: Halt) -> OperationResult:
        slot, admission = self.acceptance.admit_or_raise(body.order)
        if admission == "news":
            self.reconcile_slot(slot)
        # An inspection takes no lock: operators want to inspect a slice that takes long to start.
        return inspect_slot(body, self.host, halt, lambda: _check_not_superseded(slot, body.order))

    def _repair(self, body: SlotRepair, halt: Halt) -> OperationResult:
        slot, admission = self.acceptance.admit_or_raise(body.order)
        try:
            with slot.repairing(halt) as is_ours:
                if not is_ours:
                    raise Halted
                _check_not_superseded(slot, body.order)
                return repair_slot(body, self.host, halt)
        finally:
            if admission == "news":
                # Start the slot's work after the repair: it may take an hour, and the repair would wait for it.
                self.reconcile_slot(slot)


def _check_not_superseded(slot: Slot, order: Order) -> None:
    """Raise `Halted` if the slot has stored a newer order than `order`."""
    held = slot.held
    if held is None or held.order.token != order.token:
        raise Halted
