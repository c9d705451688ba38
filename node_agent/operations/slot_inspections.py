"""Operations that inspect a slot without changing it. They run concurrently with the slot's own work."""

import time
from collections.abc import Callable
from typing import Final, assert_never

from node_agent.host.desired_slice import network_of, slice_of
from node_agent.host.drift import differences, evidence
from node_agent.host.host import Answered, Host
from node_agent.host.slices import Step
from node_agent.operations.repairs import Planned, steps_to_apply, steps_to_remove, steps_to_stop
from node_agent.operations.running_operations import OperationError
from node_agent.operations.slot_repairs import apply_body_of
from node_agent.runtime.halt import Halt
from node_agent.slots.converge import retry_while_unreadable
from node_agent.slots.slice_start import PROBE_SECONDS, ReadinessObservation, look
from node_agent.transport.progress import report_wait
from tasks.operations import (
    AddressReport,
    AddressReported,
    Drift,
    DriftReport,
    DriftReported,
    MachineInspect,
    MachineInspected,
    OperationResult,
    ReadinessPoll,
    ReadinessPolled,
    SlotInspection,
)
from tasks.orders import ApplySlice, Order, RemoveSlice, StopSlice

_LONGEST_BANNER: Final = 256


def inspect_slot(
    body: SlotInspection, host: Host, halt: Halt, check_not_superseded: Callable[[], None]
) -> OperationResult:
    """Inspect a slot and return the result. `check_not_superseded` raises `Halted` if the slot has a newer order.

    Raises `OperationError`, `HostUnreadable`, `Halted`.
    """
    match body:
        case AddressReport(order=order):
            return _address(order, host)
        case ReadinessPoll(order=order):
            return _poll(order, host, halt, check_not_superseded)
        case DriftReport(order=order):
            return DriftReported(drift=tuple(_of_aspect(name, steps) for name, steps in _drift(order, host)))
        case MachineInspect(order=order):
            return _machine(order, host)
        case _:
            assert_never(body)


def _address(order: Order, host: Host) -> AddressReported:
    body = apply_body_of(order)
    observed = look(order, body, host)
    seen = observed.address
    return AddressReported(
        mac=seen.mac,
        expected_ip=seen.expected_ip,
        actual_ip=seen.actual_ip,
        lease_state=seen.lease_state,
        endpoint_port=body.readiness.port if observed.is_ready() else None,
    )


def _poll(order: Order, host: Host, halt: Halt, check_not_superseded: Callable[[], None]) -> ReadinessPolled:
    body = apply_body_of(order)
    until = time.monotonic() + body.readiness.deadline_seconds
    report_wait("readiness.wait")
    while True:
        check_not_superseded()
        observed = retry_while_unreadable(lambda: look(order, body, host), until=until, halt=halt)
        if observed.is_ready() and isinstance(observed.probe_result, Answered):
            return _ready(observed, observed.probe_result, body)
        if time.monotonic() >= until:
            raise OperationError(*observed.failure())
        halt.wait(PROBE_SECONDS)


def _ready(observed: ReadinessObservation, answer: Answered, body: ApplySlice) -> ReadinessPolled:
    return ReadinessPolled(
        address=observed.address.expected_ip,
        port=body.readiness.port,
        banner=answer.banner[:_LONGEST_BANNER],
    )


def _of_aspect(name: str, steps: tuple[Step, ...]) -> Drift:
    names = tuple(step.name for step in steps)
    return Drift(aspect=name, steps=names, evidence=evidence(differences(steps)))


def _drift(order: Order, host: Host) -> Planned:
    match order.body:
        case ApplySlice() as body:
            return steps_to_apply(slice_of(order, body), host)
        case StopSlice(network=network):
            return steps_to_stop(network_of(order.slot_id, network), host)
        case RemoveSlice(network=network):
            return steps_to_remove(network_of(order.slot_id, network), host)
        case _:
            assert_never(order.body)


def _machine(order: Order, host: Host) -> MachineInspected:
    found = host.inspect_machine(network_of(order.slot_id, order.body.network))
    if found is None:
        return MachineInspected(state="absent")
    return MachineInspected(state=found.state, vcpus=found.vcpus, memory_mib=found.memory_mib)
