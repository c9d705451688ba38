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
    # Once: a host that cannot be read, and is tried again, gives the guest no more time.
    cut_off_at = time.monotonic() + body.grace_seconds

    def go_down() -> tuple[str, ...]:
        close(stopped, host, halt)
        if not _shuts_down(stopped, host, halt, cut_off_at):
            force()
        return _off(stopped, host, halt)

    try:
        return patiently(go_down, until=cut_off_at + PATIENCE_SECONDS, halt=halt)
    except HostUnreadable as unreadable:
        return (f"unknown, because the host could not be read: {unreadable}",)


def _shuts_down(network: SliceNetwork, host: Host, halt: Halt, cut_off_at: float) -> bool:
    """Ask the guest to shut down, and wait until the monotonic time `cut_off_at`; whether nothing of it runs.

    Raises `HostUnreadable`, `Halted`.
    """
    asking = host.to_shut_down(network)
    try:
        run_steps(asking, halt)
    except StepFailed:
        return False
    tell_wait("shutdown.wait")
    while host.runs(network):
        if not asking or time.monotonic() >= cut_off_at:
            return False
        halt.wait(_LOOK_SECONDS)
    return True


def _off(stopped: SliceNetwork, host: Host, halt: Halt) -> tuple[str, ...]:
    refusals = switch_off(stopped, host, halt)
    left = still_on(stopped, host)
    return (*left, *(f"refused: {refusal}" for refusal in refusals)) if left else ()
