"""Operations that repair or remove aspects of a slot, and report the steps that they ran."""

from typing import Final, assert_never

from node_agent.host.desired_slice import network_of, slice_of
from node_agent.host.host import Host
from node_agent.operations.repairs import remains_of, remove_aspects, repair_aspects
from node_agent.operations.running_operations import OperationError
from node_agent.runtime.halt import Halt
from tasks.operations import (
    IngressApply,
    IngressApplyResult,
    IngressRemove,
    IngressRemoveResult,
    LeaseApplied,
    LeaseApply,
    OperationResult,
    PortReconcile,
    PortReconciled,
    SlotRepair,
    VnicAttach,
    VnicAttached,
)
from tasks.orders import ApplySlice, Order, RemoveSlice, StopSlice

_EXPOSURE: Final = ("translation", "lease")


def repair_slot(body: SlotRepair, host: Host, halt: Halt) -> OperationResult:
    """Execute an operation that repairs or removes aspects of a slot. The caller must hold the slot's work lock.

    Raises `OperationError`, `StepFailed`, `HostUnreadable`, `Halted`.
    """
    match body:
        case VnicAttach(order=order):
            return VnicAttached(steps=_repaired(order, "link", host, halt))
        case PortReconcile(order=order):
            return PortReconciled(steps=_repaired(order, "port", host, halt))
        case LeaseApply(order=order):
            return LeaseApplied(steps=_repaired(order, "lease", host, halt))
        case IngressApply(order=order):
            return IngressApplyResult(steps=_repaired(order, "translation", host, halt))
        case IngressRemove(order=order):
            return _removed(order, host, halt)
        case _:
            assert_never(body)


def apply_body_of(order: Order) -> ApplySlice:
    """Return the body of an order to run a slice. Raises `OperationError` for an order to stop or remove a slice."""
    match order.body:
        case ApplySlice() as body:
            return body
        case StopSlice():
            raise OperationError(
                "not_wanted",
                f"the operation requires a running slice; the order for slot {order.slot_id} stops the slice",
            )
        case RemoveSlice():
            raise OperationError(
                "not_wanted",
                f"the operation requires a running slice; the order for slot {order.slot_id} removes the slice",
            )
        case _:
            assert_never(order.body)


def _repaired(order: Order, aspect: str, host: Host, halt: Halt) -> tuple[str, ...]:
    return repair_aspects(slice_of(order, apply_body_of(order)), (aspect,), host, halt)


def _removed(order: Order, host: Host, halt: Halt) -> IngressRemoveResult:
    if not isinstance(order.body, RemoveSlice):
        raise OperationError(
            "not_wanted",
            f"the operation requires an empty slot; slot {order.slot_id} is reserved for allocation {order.allocation_id}",
        )
    gone = network_of(order.slot_id, order.body.network)
    steps = remove_aspects(gone, _EXPOSURE, host, halt)
    if left := remains_of(gone, _EXPOSURE, host):
        raise OperationError("leftovers", "; ".join(left))
    return IngressRemoveResult(steps=steps, absent=_EXPOSURE)
