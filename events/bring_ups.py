"""A failed bring-up caused by a node fault: a part of facts about nodes and slots."""

from datetime import datetime

from events.facts import Reason, Record
from events.values import AllocationId, SlotId


class FailedBringUp(Record, frozen=True):
    """One slice that a node could not bring up because of a node fault."""

    slot_id: SlotId
    """The slot of the slice."""
    allocation_id: AllocationId
    """The allocation of the slice."""
    reason: Reason
    """The reason as the node reported it."""
    failed_at: datetime
    """When the node observed the failure, on the control plane's clock as estimated by the node."""
