"""Stop of a slice: remove its ingress rules, let its guest shut down, and remove its objects from the host.

A guest that does not shut down in time is powered off. The slice's DHCP reservation and its folder are kept. In the
end, the host is read again, to prove that the slice is off.
"""

import time
from collections.abc import Callable
from typing import Final

from node_agent.host.desired_slice import network_of
from node_agent.host.host import Host
from node_agent.host.slices import HostUnreadable, SliceNetwork
from node_agent.runtime.halt import Halt
from node_agent.slots.converge import close, retry_while_unreadable, still_on, switch_off
from node_agent.slots.slice_removal import UNREADABLE_TIMEOUT_SECONDS
from node_agent.slots.steps import StepFailed, run_steps
from node_agent.transport.progress import report_wait
from tasks.orders import Order, StopSlice

_POLL_SECONDS: Final = 0.5


def stop_slice(
    order: Order, body: StopSlice, host: Host, halt: Halt, force: Callable[[], None]
) -> tuple[str, ...]:
    """Stop a slice. Return descriptions of the parts that run or can be reached; empty if the slice is proved off.

    `force` is called before a guest that did not shut down in time is destroyed. Raises `Halted`.
    """
    stopped = network_of(order.slot_id, body.network)
    # Computed once: retries after an unreadable host give the guest no more time.
    deadline = time.monotonic() + body.grace_seconds

    def attempt() -> tuple[str, ...]:
        close(stopped, host, halt)
        if not _shut_down(stopped, host, halt, deadline):
            force()
        return _switch_off(stopped, host, halt)

    try:
        return retry_while_unreadable(attempt, until=deadline + UNREADABLE_TIMEOUT_SECONDS, halt=halt)
    except HostUnreadable as unreadable:
        return (f"the state of the slice is unknown, because the host could not be read: {unreadable}",)


def _shut_down(network: SliceNetwork, host: Host, halt: Halt, deadline: float) -> bool:
    """Request the guest to shut down, and wait until the monotonic time `deadline`. Return whether it has stopped.

    Raises `HostUnreadable`, `Halted`.
    """
    steps = host.to_shut_down(network)
    try:
        run_steps(steps, halt)
    except StepFailed:
        return False
    report_wait("shutdown.wait")
    while host.runs(network):
        if not steps or time.monotonic() >= deadline:
            return False
        halt.wait(_POLL_SECONDS)
    return True


def _switch_off(stopped: SliceNetwork, host: Host, halt: Halt) -> tuple[str, ...]:
    refusals = switch_off(stopped, host, halt)
    left = still_on(stopped, host)
    return (*left, *(f"refused: {refusal}" for refusal in refusals)) if left else ()
