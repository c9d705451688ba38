"""Operations that may change a slot: which aspects each is about, and what it says of the steps that it took."""

from typing import Final, assert_never

from node_agent.halt import Halt
from node_agent.host import Host
from node_agent.mends import mend, remaining, withdraw
from node_agent.running import CameToNothing
from node_agent.wanted import network_of, slice_of
from tasks.operations import (
    ExposureApplied,
    ExposureApply,
    ExposureRemove,
    ExposureRemoved,
    LeaseApplied,
    LeaseApply,
    OperationResult,
    PortReconcile,
    PortReconciled,
    SlotMend,
    VnicAttach,
    VnicAttached,
)
from tasks.orders import ApplySlice, Order, RemoveSlice, StopSlice

_EXPOSURE: Final = ("translation", "lease")


def mend_slot(body: SlotMend, host: Host, halt: Halt) -> OperationResult:
    """Carry it out; the caller owns the slot's work.

    Raises `CameToNothing`, `StepFailed`, `HostUnreadable`, `Halted`.
    """
    match body:
        case VnicAttach(wish=wish):
            return VnicAttached(steps=_made(wish, "link", host, halt))
        case PortReconcile(wish=wish):
            return PortReconciled(steps=_made(wish, "port", host, halt))
        case LeaseApply(wish=wish):
            return LeaseApplied(steps=_made(wish, "lease", host, halt))
        case ExposureApply(wish=wish):
            return ExposureApplied(steps=_made(wish, "translation", host, halt))
        case ExposureRemove(wish=wish):
            return _withdrawn(wish, host, halt)
        case _:
            assert_never(body)


def applied_in(wish: Order) -> ApplySlice:
    """Raises `CameToNothing` for an order that wants the slice off or the slot empty."""
    match wish.body:
        case ApplySlice() as body:
            return body
        case StopSlice():
            raise CameToNothing("not_wanted", f"the slice of {wish.slot_id} is to be off")
        case RemoveSlice():
            raise CameToNothing("not_wanted", f"{wish.slot_id} is to carry nothing")
        case _:
            assert_never(wish.body)


def _made(wish: Order, aspect: str, host: Host, halt: Halt) -> tuple[str, ...]:
    return mend(slice_of(wish, applied_in(wish)), (aspect,), host, halt)


def _withdrawn(wish: Order, host: Host, halt: Halt) -> ExposureRemoved:
    if not isinstance(wish.body, RemoveSlice):
        raise CameToNothing("not_wanted", f"{wish.slot_id} is kept for {wish.allocation_id}")
    gone = network_of(wish.slot_id, wish.body.network)
    steps = withdraw(gone, _EXPOSURE, host, halt)
    if left := remaining(gone, _EXPOSURE, host):
        raise CameToNothing("leftovers", "; ".join(left))
    return ExposureRemoved(steps=steps, absent=_EXPOSURE)
