"""Switching a slice off: what it exposes goes first, then its guest, which may shut down by itself, then all else but
its reservation and its folder; and then the proof, which is a fresh look.
"""

import time
from collections.abc import Callable
from typing import Final

from node_agent.converge import close, patiently, still_on, switch_off
from node_agent.halt import Halt
from node_agent.host import Host
from node_agent.progress import tell_wait
from node_agent.slices import HostUnreadable, SliceNetwork
from node_agent.steps import StepFailed, run_steps
from node_agent.taking_down import PATIENCE_SECONDS
from node_agent.wanted import network_of
from tasks.orders import Order, StopSlice

_LOOK_SECONDS: Final = 0.5


def shut_off(
    order: Order, body: StopSlice, host: Host, halt: Halt, force: Callable[[], None]
) -> tuple[str, ...]:
    """What is still on in the end, in words. `force` hears that the guest is about to be cut off. Raises `Halted`."""
    stopped = network_of(order.slot_id, body.network)
    until = time.monotonic() + body.grace_seconds + PATIENCE_SECONDS

    def go_down() -> tuple[str, ...]:
        close(stopped, host, halt)
        if not _shuts_down(stopped, host, halt, body.grace_seconds):
            force()
        return _off(stopped, host, halt)

    try:
        return patiently(go_down, until=until, halt=halt)
    except HostUnreadable as unreadable:
        return (f"unknown, because the host could not be read: {unreadable}",)


def _shuts_down(network: SliceNetwork, host: Host, halt: Halt, grace_seconds: float) -> bool:
    """Ask the guest to shut down, and wait; whether nothing of it runs. Raises `HostUnreadable`, `Halted`."""
    asking = host.to_shut_down(network)
    try:
        run_steps(asking, halt)
    except StepFailed:
        return False
    until = time.monotonic() + (grace_seconds if asking else 0)
    tell_wait("shutdown.wait")
    while host.runs(network):
        if time.monotonic() >= until:
            return False
        halt.wait(_LOOK_SECONDS)
    return True


def _off(stopped: SliceNetwork, host: Host, halt: Halt) -> tuple[str, ...]:
    refusals = switch_off(stopped, host, halt)
    left = still_on(stopped, host)
    return (*left, *(f"refused: {refusal}" for refusal in refusals)) if left else ()
