"""Operations that look at a slot and touch nothing, so they go on beside the slot's own work."""

import time
from collections.abc import Callable
from typing import Final, assert_never

from node_agent.bringing_up import PROBE_SECONDS, Sighting, look
from node_agent.converge import patiently
from node_agent.drift import differences, evidence
from node_agent.halt import Halt
from node_agent.host import Answered, Host
from node_agent.mends import Planned, missing, switched_on, too_much
from node_agent.progress import tell_wait
from node_agent.running import CameToNothing
from node_agent.slices import Step
from node_agent.slot_mends import applied_in
from node_agent.wanted import network_of, slice_of
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
    SlotLook,
)
from tasks.orders import ApplySlice, Order, RemoveSlice, StopSlice

_LONGEST_BANNER: Final = 256


def look_at_slot(body: SlotLook, host: Host, halt: Halt, check_wanted: Callable[[], None]) -> OperationResult:
    """What there is to say. `check_wanted` raises `Halted` once the slot was told otherwise.

    Raises `CameToNothing`, `HostUnreadable`, `Halted`.
    """
    match body:
        case AddressReport(wish=wish):
            return _address(wish, host)
        case ReadinessPoll(wish=wish):
            return _poll(wish, host, halt, check_wanted)
        case DriftReport(wish=wish):
            return DriftReported(drift=tuple(_of_aspect(name, steps) for name, steps in _drift(wish, host)))
        case MachineInspect(wish=wish):
            return _machine(wish, host)
        case _:
            assert_never(body)


def _address(wish: Order, host: Host) -> AddressReported:
    body = applied_in(wish)
    sighting = look(wish, body, host)
    seen = sighting.address
    return AddressReported(
        mac=seen.mac,
        expected_ip=seen.expected_ip,
        actual_ip=seen.actual_ip,
        lease_state=seen.lease_state,
        endpoint_port=body.readiness.port if sighting.is_ready() else None,
    )


def _poll(wish: Order, host: Host, halt: Halt, check_wanted: Callable[[], None]) -> ReadinessPolled:
    body = applied_in(wish)
    until = time.monotonic() + body.readiness.deadline_seconds
    tell_wait("readiness.wait")
    while True:
        check_wanted()
        sighting = patiently(lambda: look(wish, body, host), until=until, halt=halt)
        if sighting.is_ready() and isinstance(sighting.heard, Answered):
            return _ready(sighting, sighting.heard, body)
        if time.monotonic() >= until:
            raise CameToNothing(*sighting.failure())
        halt.wait(PROBE_SECONDS)


def _ready(sighting: Sighting, heard: Answered, body: ApplySlice) -> ReadinessPolled:
    return ReadinessPolled(
        address=sighting.address.expected_ip,
        port=body.readiness.port,
        banner=heard.banner[:_LONGEST_BANNER],
    )


def _of_aspect(name: str, steps: tuple[Step, ...]) -> Drift:
    names = tuple(step.name for step in steps)
    return Drift(aspect=name, steps=names, evidence=evidence(differences(steps)))


def _drift(wish: Order, host: Host) -> Planned:
    match wish.body:
        case ApplySlice() as body:
            return missing(slice_of(wish, body), host)
        case StopSlice(network=network):
            return switched_on(network_of(wish.slot_id, network), host)
        case RemoveSlice(network=network):
            return too_much(network_of(wish.slot_id, network), host)
        case _:
            assert_never(wish.body)


def _machine(wish: Order, host: Host) -> MachineInspected:
    found = host.inspect_machine(network_of(wish.slot_id, wish.body.network))
    if found is None:
        return MachineInspected(state="absent")
    return MachineInspected(state=found.state, vcpus=found.vcpus, memory_mib=found.memory_mib)
