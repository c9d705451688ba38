"""Facts about allocations, in life order. Stream: `allocation-<allocation_id>`.

An allocation's own stream tells its whole life, so that what is due next can be derived from it alone.
"""

from datetime import datetime

from events.facts import Fact, Reason, Record
from events.slots import SlotNetwork
from events.values import (
    AllocationId,
    ImageName,
    Ipv4Address,
    MacAddress,
    ProjectId,
    SkuName,
    SlotId,
    SshPublicKey,
)


class PlacedSlot(Record, frozen=True):
    slot_id: SlotId
    network: SlotNetwork


class AllocationRequested(Fact, frozen=True):
    allocation_id: AllocationId
    project: ProjectId
    sku: SkuName
    network_mode: str
    image: ImageName
    ssh_authorized_keys: tuple[SshPublicKey, ...]
    lease_seconds: int
    slot_count: int
    labels: dict[str, str]


class AllocationPlaced(Fact, frozen=True):
    """Slots were chosen and claimed in the same append; all of one node."""

    allocation_id: AllocationId
    slots: tuple[PlacedSlot, ...]
    deadline: datetime
    """When the allocation fails unless it became active."""


class SliceStarting(Fact, frozen=True):
    """The node took up the order for one slot (or, after an interruption, the slice again)."""

    allocation_id: AllocationId
    slot_id: SlotId


class SliceAddressObserved(Fact, frozen=True):
    """What the node saw of the slice's address: evidence, never intent (NOD-4, NOD-5)."""

    allocation_id: AllocationId
    slot_id: SlotId
    mac: MacAddress
    expected_ip: Ipv4Address
    actual_ip: Ipv4Address | None
    lease_state: str


class SliceReady(Fact, frozen=True):
    """The management readiness check passed; `banner` is what the guest said."""

    allocation_id: AllocationId
    slot_id: SlotId
    address: Ipv4Address
    port: int
    banner: str


class AllocationActivated(Fact, frozen=True):
    allocation_id: AllocationId


class LeaseGranted(Fact, frozen=True):
    allocation_id: AllocationId
    granted_at: datetime
    expires_at: datetime


class SliceInterrupted(Fact, frozen=True):
    """A running slice stopped without an order: its host rebooted, or its machine died."""

    allocation_id: AllocationId
    slot_id: SlotId
    reason: Reason
    deadline: datetime
    """When the allocation fails unless the slice is ready again."""


class LeaseExpired(Fact, frozen=True):
    allocation_id: AllocationId


class AllocationReleasing(Fact, frozen=True):
    """Release was asked for, by a caller or by the end of the lease."""

    allocation_id: AllocationId
    reason: Reason


class AllocationFailed(Fact, frozen=True):
    """The allocation ended without what was asked for. Its slots are being emptied."""

    allocation_id: AllocationId
    reason: Reason


class LeaseEnded(Fact, frozen=True):
    allocation_id: AllocationId


class SliceRemovalUnproved(Fact, frozen=True):
    """The node still found something of the slice; removal is tried again until it is proved."""

    allocation_id: AllocationId
    slot_id: SlotId
    leftovers: tuple[str, ...]


class SliceRemoved(Fact, frozen=True):
    """The node proved the absence of one slice."""

    allocation_id: AllocationId
    slot_id: SlotId


class AllocationReleased(Fact, frozen=True):
    allocation_id: AllocationId


AllocationFact = (
    AllocationRequested
    | AllocationPlaced
    | SliceStarting
    | SliceAddressObserved
    | SliceReady
    | AllocationActivated
    | LeaseGranted
    | SliceInterrupted
    | LeaseExpired
    | AllocationReleasing
    | AllocationFailed
    | LeaseEnded
    | SliceRemovalUnproved
    | SliceRemoved
    | AllocationReleased
)
