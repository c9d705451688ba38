"""Record of a slice that could not be brought up because of a node fault. Facts about nodes and slots contain it."""

from datetime import datetime

from events.facts import Reason, Record
from events.values import AllocationId, SlotId


class FailedBringUp(Record, frozen=True):
    """One slice that a node could not bring up because of a node fault."""

    slot_id: SlotId
    """The slot of the slice that could not be brought up."""
    allocation_id: AllocationId
    """The allocation of the slice that could not be brought up."""
    reason: Reason
    """Why the slice could not be brought up, as the node reported it."""
    failed_at: datetime
    """When the node observed the failure, on the control plane's clock as estimated by the node."""
