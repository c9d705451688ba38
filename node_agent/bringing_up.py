"""Bringing a slice up: made, then watched until it answers where it should, or until its deadline.

Ready means both: the readiness check passed, and the lease is bound to the reserved address (ALC-9). The deadline
runs from when the work is taken up, on the monotonic clock; the control plane keeps one of its own.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from node_agent.converge import make, patiently
from node_agent.halt import Halt
from node_agent.host import Answered, Host, LeaseState, NotYet
from node_agent.progress import tell_wait
from node_agent.slices import HostUnreadable, Slice
from node_agent.steps import StepFailed
from node_agent.wanted import slice_of
from tasks.fields import line
from tasks.orders import ApplySlice, Order
from tasks.reasons import SliceFailureCode, UnreadyCode
from tasks.reports import Reason, SliceAddress, SliceFailed, SliceReady

PROBE_SECONDS: Final = 0.2
_LOOK_AGAIN_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True)
class Sighting:
    """One look at a slice that is coming up."""

    address: SliceAddress
    heard: Answered | NotYet

    def failure(self) -> tuple[UnreadyCode, str]:
        """Why the slice is not ready, most telling cause first."""
        match self.address.lease_state, self.heard:
            case ("foreign", _) if self.address.actual_ip is None:
                return "lease_mismatch", f"another card holds a lease on {self.address.expected_ip}"
            case ("foreign", _):
                return "lease_mismatch", self._lease()
            case ("bound", _) if not self._as_reserved():
                return "lease_mismatch", self._lease()
            case ("none" | "offered" | "expired", _):
                return "no_lease", self._lease()
            case ("bound", NotYet(why)):
                return "not_reachable", f"{self.address.expected_ip}: {why}"
            case ("bound", Answered()):
                raise AssertionError("that is ready")

    def is_ready(self) -> bool:
        return (
            isinstance(self.heard, Answered) and self.address.lease_state == "bound" and self._as_reserved()
        )

    def _as_reserved(self) -> bool:
        return self.address.actual_ip == self.address.expected_ip

    def _lease(self) -> str:
        seen = self.address
        return f"lease of {seen.mac} is {seen.lease_state}, on {seen.actual_ip or 'no address'} where {seen.expected_ip} is reserved"


def bring_up(
    order: Order, body: ApplySlice, host: Host, halt: Halt, on_address: Callable[[SliceAddress], None]
) -> SliceReady | SliceFailed:
    """Make the slice and wait for it. `on_address` hears every look at its address. Raises `Halted`."""
    attempt = _Attempt(order, body, host, halt, until=time.monotonic() + body.readiness.deadline_seconds)
    try:
        attempt.make()
        return attempt.await_ready(on_address)
    except StepFailed as failure:
        return attempt.failed(_reason("step_refused", str(failure)))
    except HostUnreadable as unreadable:
        return attempt.failed(_reason("host_unreadable", str(unreadable)))


def look(order: Order, body: ApplySlice, host: Host) -> Sighting:
    """Observe the address and probe once. Raises `HostUnreadable`."""
    wanted = slice_of(order, body)
    address = observe(order, wanted, host)
    heard = host.probe(wanted.network.ip, body.readiness.port, body.readiness.banner)
    return Sighting(address, heard)


def observe(order: Order, wanted: Slice, host: Host) -> SliceAddress:
    """NOD-5: what DHCP's evidence says. Raises `HostUnreadable`."""
    seen = host.observe_address(wanted.network)
    state: LeaseState = seen.lease_state
    return SliceAddress(
        slot_id=order.slot_id,
        allocation_id=order.allocation_id,
        mac=wanted.network.mac,
        expected_ip=wanted.network.ip,
        actual_ip=seen.actual_ip,
        lease_state=state,
    )


@dataclass(frozen=True, slots=True)
class _Attempt:
    order: Order
    body: ApplySlice
    host: Host
    halt: Halt
    until: float

    def make(self) -> None:
        wanted = slice_of(self.order, self.body)
        patiently(lambda: make(wanted, self.host, self.halt), until=self.until, halt=self.halt)

    def await_ready(self, on_address: Callable[[SliceAddress], None]) -> SliceReady | SliceFailed:
        tell_wait("readiness.wait")
        look_again = time.monotonic() + _LOOK_AGAIN_SECONDS
        while True:
            sighting = patiently(self._look, until=self.until, halt=self.halt)
            on_address(sighting.address)
            if sighting.is_ready() and isinstance(sighting.heard, Answered):
                return self._ready(sighting.heard)
            if time.monotonic() >= self.until:
                return self.failed(_reason(*sighting.failure()))
            self.halt.wait(PROBE_SECONDS)
            if time.monotonic() >= look_again:
                self.make()
                look_again = time.monotonic() + _LOOK_AGAIN_SECONDS

    def failed(self, reason: Reason) -> SliceFailed:
        return SliceFailed(slot_id=self.order.slot_id, allocation_id=self.order.allocation_id, reason=reason)

    def _look(self) -> Sighting:
        return look(self.order, self.body, self.host)

    def _ready(self, heard: Answered) -> SliceReady:
        return SliceReady(
            slot_id=self.order.slot_id,
            allocation_id=self.order.allocation_id,
            address=self.body.network.private_ip,
            port=self.body.readiness.port,
            banner=heard.banner[:256],
        )


def _reason(code: SliceFailureCode, message: str) -> Reason:
    return Reason(code=code, message=line(message))
