"""Slice start: create the slice on the host, then probe it until it is ready or its deadline passes.

A slice is ready when its readiness check passes and its DHCP lease is bound to the reserved address (ALC-9). The
deadline counts from the start of the work, on the monotonic clock; the control plane has a deadline of its own.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from node_agent.host.desired_slice import slice_of
from node_agent.host.host import Answered, Host, LeaseState, NotYet
from node_agent.host.slices import HostUnreadable, Slice
from node_agent.runtime.halt import Halt
from node_agent.slots.converge import make, retry_while_unreadable
from node_agent.slots.steps import StepFailed
from node_agent.transport.progress import report_wait
from tasks.fields import line
from tasks.orders import ApplySlice, Order
from tasks.reasons import SliceFailureCode, UnreadyCode
from tasks.reports import Reason, SliceAddress, SliceFailed, SliceReady

PROBE_SECONDS: Final = 0.2
"""Seconds between two readiness probes of a slice that is starting."""
_COMPARE_AGAIN_SECONDS: Final = 3.0
"""Interval at which a slice that is starting is compared with its desired state again."""


@dataclass(frozen=True, slots=True)
class ReadinessObservation:
    """Observed address and probe result of a slice that is starting."""

    address: SliceAddress
    probe_result: Answered | NotYet

    def failure(self) -> tuple[UnreadyCode, str]:
        """Return the code and message of the reason why the slice is not ready.

        A wrong DHCP lease takes precedence over a failed probe.
        """
        match self.address.lease_state, self.probe_result:
            case ("foreign", _) if self.address.actual_ip is None:
                return (
                    "lease_mismatch",
                    f"another network card holds the DHCP lease of the reserved address {self.address.expected_ip}",
                )
            case ("foreign", _):
                return "lease_mismatch", self._lease()
            case ("bound", _) if not self._has_reserved_address():
                return "lease_mismatch", self._lease()
            case ("none" | "offered" | "expired", _):
                return "no_lease", self._lease()
            case ("bound", NotYet(reason)):
                return "not_reachable", f"{self.address.expected_ip}: {reason}"
            case ("bound", Answered()):
                raise AssertionError("failure() must not be called for a slice that is ready")

    def is_ready(self) -> bool:
        """Return whether the probe succeeded and the DHCP lease is bound to the reserved address."""
        return (
            isinstance(self.probe_result, Answered)
            and self.address.lease_state == "bound"
            and self._has_reserved_address()
        )

    def _has_reserved_address(self) -> bool:
        return self.address.actual_ip == self.address.expected_ip

    def _lease(self) -> str:
        lease = self.address
        address = lease.actual_ip or "no address"
        found = f"the DHCP lease of {lease.mac} is in state {lease.lease_state!r} with {address}"
        return f"{found}; the reserved address is {lease.expected_ip}"


def bring_up(
    order: Order, body: ApplySlice, host: Host, halt: Halt, on_address: Callable[[SliceAddress], None]
) -> SliceReady | SliceFailed:
    """Create the slice on the host and wait until it is ready. Raises `Halted`.

    `on_address` receives every observation of the slice's address.
    """
    attempt = _Attempt(order, body, host, halt, until=time.monotonic() + body.readiness.deadline_seconds)
    try:
        attempt.make()
        return attempt.await_ready(on_address)
    except StepFailed as failure:
        return attempt.failed(_reason(failure.code, str(failure)))
    except HostUnreadable as unreadable:
        return attempt.failed(_reason("host_unreadable", str(unreadable)))


def look(order: Order, body: ApplySlice, host: Host) -> ReadinessObservation:
    """Observe a starting slice once: read its address from the DHCP server's records, and probe its readiness port.
    Raises `HostUnreadable`.
    """
    desired = slice_of(order, body)
    address = observe(order, desired, host)
    probe_result = host.probe(desired.network.ip, body.readiness.port, body.readiness.banner)
    return ReadinessObservation(address, probe_result)


def observe(order: Order, desired: Slice, host: Host) -> SliceAddress:
    """Return the slice's address and DHCP lease state as the DHCP server's records show them (NOD-5).

    Raises `HostUnreadable`.
    """
    observed = host.observe_address(desired.network)
    state: LeaseState = observed.lease_state
    return SliceAddress(
        slot_id=order.slot_id,
        allocation_id=order.allocation_id,
        mac=desired.network.mac,
        expected_ip=desired.network.ip,
        actual_ip=observed.actual_ip,
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
        desired = slice_of(self.order, self.body)
        retry_while_unreadable(lambda: make(desired, self.host, self.halt), until=self.until, halt=self.halt)

    def await_ready(self, on_address: Callable[[SliceAddress], None]) -> SliceReady | SliceFailed:
        report_wait("readiness.wait")
        reconcile_at = time.monotonic() + _COMPARE_AGAIN_SECONDS
        while True:
            observed = retry_while_unreadable(self._look, until=self.until, halt=self.halt)
            on_address(observed.address)
            if observed.is_ready() and isinstance(observed.probe_result, Answered):
                return self._ready(observed.probe_result)
            if time.monotonic() >= self.until:
                return self.failed(_reason(*observed.failure()))
            self.halt.wait(PROBE_SECONDS)
            if time.monotonic() >= reconcile_at:
                self.make()
                reconcile_at = time.monotonic() + _COMPARE_AGAIN_SECONDS

    def failed(self, reason: Reason) -> SliceFailed:
        return SliceFailed(slot_id=self.order.slot_id, allocation_id=self.order.allocation_id, reason=reason)

    def _look(self) -> ReadinessObservation:
        return look(self.order, self.body, self.host)

    def _ready(self, answered: Answered) -> SliceReady:
        return SliceReady(
            slot_id=self.order.slot_id,
            allocation_id=self.order.allocation_id,
            address=self.body.network.private_ip,
            port=self.body.readiness.port,
            banner=answered.banner[:256],
        )


def _reason(code: SliceFailureCode, message: str) -> Reason:
    return Reason(code=code, message=line(message))
