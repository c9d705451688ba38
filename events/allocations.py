"""Facts about allocations, in life order. Stream: `allocation-<allocation_id>`.

An allocation's own stream tells its whole life, so that what is due next can be derived from it alone. Those about ways
in to its slices are in `ingress`.
"""

from datetime import datetime

from events.facts import Fact, Reason, Record
from events.ingress import IngressFact
from events.slots import SlotNetwork
from events.values import (
    AllocationId,
    ImageName,
    Ipv4Address,
    MacAddress,
    NodeId,
    ProjectId,
    SkuName,
    SlotId,
    SshPublicKey,
)


class PlacedSlot(Record, frozen=True):
    """One slot of an allocation, with the network identity that its slice gets."""

    slot_id: SlotId
    network: SlotNetwork


# Without defaults: a request without the newer options is stored in the bytes of version 1.
class AllocationRequested(Fact, frozen=True, omit_defaults=True):
    """Somebody asked for slots and was not refused: they are claimed in the same append."""

    allocation_id: AllocationId
    project: ProjectId
    """On whose account."""
    sku: SkuName
    """The size asked for."""
    network_mode: str
    """How the slices are connected, such as `private-nat`."""
    image: ImageName
    """What the slices are started from."""
    ssh_authorized_keys: tuple[SshPublicKey, ...]
    """Who may log in to the slices; `authorized_keys` lines."""
    lease_seconds: int
    """How long the lease lasts once it is granted."""
    slot_count: int
    """How many slots, all on one node."""
    labels: dict[str, str]
    """What the caller called it; Sliceplane reads nothing into them."""
    node: NodeId | None = None
    """The node that the request named, which has all slots; absent if placement chose the node."""
    replace_on_failure: bool = True
    """Whether the allocation is placed on another node, once, if its bring-up fails due to a node fault."""


class ReadinessNamed(Fact, frozen=True):
    """The image has a sign of its own that a guest is ready, in place of an SSH banner on port 22. It holds for this
    allocation, whatever is said of the image later.
    """

    allocation_id: AllocationId
    port: int
    """TCP port of the guest."""
    banner: str
    """What a line from there begins with; empty where an open port is enough."""


class AllocationPlaced(Fact, frozen=True):
    """Slots were chosen and claimed in the same append; all of one node."""

    allocation_id: AllocationId
    slots: tuple[PlacedSlot, ...]
    """The chosen slots."""
    deadline: datetime
    """When the allocation fails unless it became active."""


class AllocationReplaced(Fact, frozen=True):
    """The bring-up failed due to a node fault, and slots on another node were chosen and claimed in the same append.
    The former slots are emptied, and stay claimed until their node proves them empty.
    """

    allocation_id: AllocationId
    vacated: tuple[SlotId, ...]
    """The former slots, all on one node."""
    slots: tuple[PlacedSlot, ...]
    """The new slots in the order of the request, all on one other node."""
    reason: Reason
    """Why the bring-up failed, as the node reported it."""
    attempt: int
    """Number of this placement, counted from 1."""
    deadline: datetime
    """When the allocation fails unless it is active by then; unchanged since the first placement."""


class SliceStarting(Fact, frozen=True):
    """The node took up the order for one slot; or, after an interruption or a start, the slice again."""

    allocation_id: AllocationId
    slot_id: SlotId


class SliceAddressObserved(Fact, frozen=True):
    """What the node saw of the slice's address: evidence, never intent (NOD-4, NOD-5)."""

    allocation_id: AllocationId
    slot_id: SlotId
    mac: MacAddress
    """Of the slice."""
    expected_ip: Ipv4Address
    """What is reserved for that MAC address."""
    actual_ip: Ipv4Address | None
    """What it has leased, if anything."""
    lease_state: str
    """`none`, `offered`, `bound`, `expired`, or `foreign`: a lease of another address, or a stranger's on this one.
    """


class SliceReady(Fact, frozen=True):
    """The management readiness check passed; `banner` is what the guest said."""

    allocation_id: AllocationId
    slot_id: SlotId
    address: Ipv4Address
    """Where the guest answered."""
    port: int
    """TCP port of the check."""
    banner: str
    """The guest's line that began as was wanted; empty where an open port was enough."""


class AllocationActivated(Fact, frozen=True):
    """All slices are ready: the first time, and again after each interruption and each start."""

    allocation_id: AllocationId


class LeaseGranted(Fact, frozen=True):
    """The time that was asked for begins. It is recorded with the first activation; neither an interruption nor a
    stop extends it.
    """

    allocation_id: AllocationId
    granted_at: datetime
    """When the lease began."""
    expires_at: datetime
    """When the allocation is released unless it ended before."""


class SliceInterrupted(Fact, frozen=True):
    """A running slice stopped without an order: its host rebooted, or its machine died."""

    allocation_id: AllocationId
    slot_id: SlotId
    reason: Reason
    deadline: datetime
    """When the allocation fails unless the slice is ready again."""


class AllocationStopping(Fact, frozen=True):
    """Somebody wants the slices switched off. The allocation keeps its slots, addresses and lease, and nothing of it
    can be reached.
    """

    allocation_id: AllocationId
    reason: Reason
    deadline: datetime
    """When the allocation fails unless all its slices are off."""


class SliceStopped(Fact, frozen=True):
    """The node proved that one slice does not run and cannot be reached."""

    allocation_id: AllocationId
    slot_id: SlotId
    forced: bool
    """True where the guest did not shut down in the time that it was given, and was cut off."""


class AllocationStopped(Fact, frozen=True):
    """All slices are off."""

    allocation_id: AllocationId


class AllocationStarting(Fact, frozen=True):
    """Somebody wants the slices of a stopped allocation back, in the same slots."""

    allocation_id: AllocationId
    reason: Reason
    deadline: datetime
    """When the allocation fails unless it became active."""


class LeaseExpired(Fact, frozen=True):
    """The lease ran its whole time. The release that follows is recorded in the same append."""

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
    """The granted time is over, because the allocation is being released or failed."""

    allocation_id: AllocationId


class SliceRemovalUnproved(Fact, frozen=True):
    """The node still found something of the slice; removal is tried again until it is proved."""

    allocation_id: AllocationId
    slot_id: SlotId
    leftovers: tuple[str, ...]
    """What is there, a line each."""


class SliceRemovalRetried(Fact, frozen=True):
    """An admin wants the slot emptied anew: its node had refused the order to do so, or given it up.

    It is what the slot's next order is named after.
    """

    allocation_id: AllocationId
    slot_id: SlotId


class SliceRemoved(Fact, frozen=True):
    """The node proved the absence of one slice."""

    allocation_id: AllocationId
    slot_id: SlotId


class SliceRemovalWaived(Fact, frozen=True):
    """An admin gave the slot back without the node's proof that nothing is left of the slice there (ALC-11)."""

    allocation_id: AllocationId
    slot_id: SlotId
    why: str
    """The admin's words."""


class AllocationReleased(Fact, frozen=True):
    """Every slot is free again: proved empty, or given back by an admin without proof. It is the last fact of a
    released allocation.
    """

    allocation_id: AllocationId


AllocationFact = (
    AllocationRequested
    | ReadinessNamed
    | AllocationPlaced
    | AllocationReplaced
    | SliceStarting
    | SliceAddressObserved
    | SliceReady
    | AllocationActivated
    | LeaseGranted
    | SliceInterrupted
    | AllocationStopping
    | SliceStopped
    | AllocationStopped
    | AllocationStarting
    | LeaseExpired
    | AllocationReleasing
    | AllocationFailed
    | LeaseEnded
    | SliceRemovalUnproved
    | SliceRemovalRetried
    | SliceRemoved
    | SliceRemovalWaived
    | AllocationReleased
    | IngressFact
)
