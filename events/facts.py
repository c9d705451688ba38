"""Base classes of facts: frozen records with names in the past tense and with only values that JSON represents exactly.

Fields are strings, integers, booleans, nulls, tuples and further records. Floats are excluded because they have no
canonical form. Times are in the envelope, except those that are part of the fact itself, which are `datetime` with a
zone. A new field needs a default or a new schema version; an upcaster in `events.upcasts` keeps the old version
readable permanently.
"""

from datetime import datetime

import msgspec

from events.values import AllocationId, SlotId


# Frozen and made of values, facts form no reference cycles. `gc=False` keeps them out of the garbage collector, which
# would otherwise scan millions of them over and over (a rebuild takes half the time).
class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Base class of structured values within a fact."""


class Fact(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Something that happened and is never undone. Its stored name is in `events.catalog`."""


class Reason(Record, frozen=True):
    """The reason for a refusal, a failure, a release or another end."""

    code: str
    """Reason code for programs, in snake_case."""
    message: str
    """Explanation for people."""


class FailedBringUp(Record, frozen=True):
    """A slice that a node could not bring up because of a node fault. Facts about nodes and slots contain it."""

    slot_id: SlotId
    """The slot of the slice that could not be brought up."""
    allocation_id: AllocationId
    """The allocation of the slice that could not be brought up."""
    reason: Reason
    """Why the slice could not be brought up, as the node reported it."""
    failed_at: datetime
    """When the node observed the failure, on the control plane's clock as estimated by the node."""


class RemainingSlot(Record, frozen=True):
    """A slot that is not empty, and the reason why it is not. Facts about nodes and allocations contain it."""

    slot_id: SlotId
    reason: Reason


class Unreadable(Fact, frozen=True):
    """A placeholder for a stored fact that this release cannot read, because a newer one wrote it or its row is
    damaged.

    The placeholder is never written. Code that displays events shows the stored row; code that decides by events must
    stop at the placeholder.
    """

    type: str
    schema_version: int
    data: str
    error: str
