"""A bring-up that failed due to a node fault: a part of facts about nodes and slots."""

from datetime import datetime

from events.facts import Reason, Record
from events.values import AllocationId, SlotId


class FailedBringUp(Record, frozen=True):
    """One slice that a node could not bring up, due to a node fault."""

    slot_id: SlotId
    """The slot of the slice."""
    allocation_id: AllocationId
    """The allocation of the slice."""
    reason: Reason
    """The reason as the node reported it."""
    failed_at: datetime
    """When the node observed the failure, by the control plane's time as the node knew it."""
