"""Taking a slice down: its ways in and out closed, everything away, and then the proof, which is a fresh look and not a
list of what was deleted.
"""

import time
from typing import Final

from node_agent.converge import close, leftovers, patiently, take_away
from node_agent.halt import Halt
from node_agent.host import Host
from node_agent.slices import HostUnreadable, SliceNetwork
from node_agent.wanted import network_of
from tasks.fields import line
from tasks.orders import Order, RemoveSlice
from tasks.reports import SliceRemains, SliceRemoved

PATIENCE_SECONDS: Final = 60.0
"""How long an unreadable host is waited for before the removal counts as unproved; the survey tries again."""

_MOST: Final = 256


def take_down(order: Order, body: RemoveSlice, host: Host, halt: Halt) -> SliceRemoved | SliceRemains:
    """Raises `Halted`."""
    gone = network_of(order.slot_id, body.network)
    until = time.monotonic() + PATIENCE_SECONDS
    try:
        left = patiently(lambda: _remove(gone, host, halt), until=until, halt=halt)
    except HostUnreadable as unreadable:
        left = (f"unknown, because the host could not be read: {unreadable}",)
    return remains(order, left) if left else removed(order, host)


def remains(order: Order, left: tuple[str, ...]) -> SliceRemains:
    """What an order was to end and did not, a line each."""
    lines = tuple(line(each) for each in left[:_MOST])
    return SliceRemains(slot_id=order.slot_id, allocation_id=order.allocation_id, leftovers=lines)


def removed(order: Order, host: Host) -> SliceRemoved:
    kinds = tuple(aspect.name for aspect in host.aspects)
    return SliceRemoved(slot_id=order.slot_id, allocation_id=order.allocation_id, absent=kinds)


def _remove(gone: SliceNetwork, host: Host, halt: Halt) -> tuple[str, ...]:
    close(gone, host, halt)
    refusals = take_away(gone, host, halt)
    left = leftovers(gone, host)
    # A refusal alone is no leftover: what counts is what is there.
    return (*left, *(f"refused: {refusal}" for refusal in refusals)) if left else ()
