"""Removal of a slice: its network access is closed first, then everything is deleted, and then its absence is proved.

The proof is that the host, read again, has no object of the slot; a list of deleted objects would not be a proof.
"""

import time
from typing import Final

from events.values import index_of
from node_agent.host.desired_slice import network_of
from node_agent.host.host import Host
from node_agent.host.slices import HostUnreadable, SliceNetwork
from node_agent.runtime.halt import Halt
from node_agent.slots.converge import close, leftovers, remove_all, retry_while_unreadable
from tasks.fields import line
from tasks.orders import Order, RemoveSlice
from tasks.reports import SliceNotRemoved, SliceRemoved

UNREADABLE_TIMEOUT_SECONDS: Final = 60.0
"""Timeout in seconds for an unreadable host. After it, the removal counts as not proved, and the survey retries it."""

_MOST: Final = 256


def remove_slice(order: Order, body: RemoveSlice, host: Host, halt: Halt) -> SliceRemoved | SliceNotRemoved:
    """Remove a slice, and return the proof of its absence or a list of its remaining objects. Raises `Halted`."""
    gone = network_of(order.slot_id, body.network)
    until = time.monotonic() + UNREADABLE_TIMEOUT_SECONDS
    try:
        left = retry_while_unreadable(lambda: _remove(gone, host, halt), until=until, halt=halt)
    except HostUnreadable as unreadable:
        left = (f"the remaining objects are unknown, because the host could not be read: {unreadable}",)
    return remains(order, left) if left else removed(order, host)


def remains(order: Order, left: tuple[str, ...]) -> SliceNotRemoved:
    """Return the outcome of an order that could not stop or remove its slice, with one line per remaining object."""
    lines = tuple(line(each) for each in left[:_MOST])
    return SliceNotRemoved(slot_id=order.slot_id, allocation_id=order.allocation_id, leftovers=lines)


def removed(order: Order, host: Host) -> SliceRemoved:
    """Return the outcome `SliceRemoved` of an order that removed its slice."""
    kinds = tuple(aspect.name for aspect in host.aspects)
    health = host.read_device_health(index_of(order.slot_id))
    return SliceRemoved(
        slot_id=order.slot_id, allocation_id=order.allocation_id, absent=kinds, devices=health
    )


def _remove(gone: SliceNetwork, host: Host, halt: Halt) -> tuple[str, ...]:
    close(gone, host, halt)
    refusals = remove_all(gone, host, halt)
    left = leftovers(gone, host)
    # Refusals alone do not count: the removal is complete if the host has nothing of the slot left.
    return (*left, *(f"refused: {refusal}" for refusal in refusals)) if left else ()
