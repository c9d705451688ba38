"""The order in which waiting requests are placed."""

from datetime import datetime
from typing import NamedTuple

from events.allocations import AllocationQueued
from events.values import AllocationId


class Place(NamedTuple):
    """Place of a request in the order: a higher priority comes first, then the longer wait. The id decides between
    requests that were queued at the same time.
    """

    priority: int
    queued_at: datetime
    allocation_id: AllocationId

    def is_ahead_of(self, other: "Place") -> bool:
        """Return whether this request comes before the other one."""
        return (-self.priority, *self[1:]) < (-other.priority, *other[1:])


def place_of(queued: AllocationQueued) -> Place:
    """Return the place of a request that waits."""
    return Place(queued.priority, queued.queued_at, queued.allocation_id)
