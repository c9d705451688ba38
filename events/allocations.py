"""Facts about allocations, in the order of their life cycle. Stream: `allocation-<allocation_id>`.

The stream of an allocation contains its complete timeline, so that its next due action is derived from this stream
alone. Facts about its ingress rules are defined in `events.ingress`.
"""

from datetime import datetime

import msgspec

from events.entries import SpecifiedAppProfile, SpecifiedImage, SpecifiedSku
from events.facts import Fact, Reason, Record, RemainingSlot
from events.ingress import IngressFact
from events.slots import SlotNetwork
from events.values import (
    AllocationId,
    ImageName,
    IngressId,
    Ipv4Address,
    Ipv4Subnet,
    MacAddress,
    NetworkMode,
    NodeId,
    ProjectId,
    SkuName,
    SlotId,
    SshPublicKey,
)


class PlacedSlot(Record, frozen=True):
    """One slot of an allocation, with the network identity of its slice."""

    slot_id: SlotId
    network: SlotNetwork


# `omit_defaults`: a request without the newer options is stored in the bytes of version 1.
class AllocationRequested(Fact, frozen=True, omit_defaults=True):
    """An allocation was requested and accepted. Its slots are claimed in the same append, or it waits for capacity
    (`allocation.queued`).
    """

    allocation_id: AllocationId
    project: ProjectId
    """Project that the allocation belongs to."""
    sku: SkuName
    """Requested slice size."""
    network_mode: NetworkMode
    """Network mode of the slices, such as `private-nat`."""
    image: ImageName
    """Image that the slices boot from."""
    ssh_authorized_keys: tuple[SshPublicKey, ...]
    """Public keys that may log in to the slices, as `authorized_keys` lines."""
    lease_seconds: int
    """Duration of the lease in seconds, counted from the time it is granted."""
    slot_count: int
    """Number of slots, all on one node."""
    labels: dict[str, str]
    """Labels that the caller attached; Sliceplane does not interpret them."""
    node: NodeId | None = None
    """Node that the request named, which provides all slots; absent if placement chose the node."""
    replace_on_failure: bool = True
    """Whether the allocation is placed on another node, once, if its bring-up fails due to a node fault."""
    apart_from: dict[str, str] = msgspec.field(default_factory=dict)
    """Labels: no node is used on which another allocation of the project with one of these labels holds a slot."""
    user_data: str | None = None
    """User-data that cloud-init runs at the first boot of the slices; absent: none."""
    gateway_key: SshPublicKey | None = None
    """Public key of the SSH gateway for this allocation, as an `authorized_keys` line. The slices accept it, and SSH
    certificates that are signed with it. Absent: the SSH gateway cannot log in to the slices."""
    network_id: str | None = None
    """Network that the slices are attached to; absent: the network of their node, isolated from other slices."""
    network_policy_id: str | None = None
    """Policy that decides which traffic passes on that network; absent: traffic between slices is denied."""
    project_network_id: str | None = None
    """Network of the project that lets its slices reach each other; absent: there is none."""


class AllocationSpecified(Fact, frozen=True):
    """The entries of the catalogue that the allocation uses, each with its whole content. They apply to this allocation
    even if the catalogue changes later.
    """

    allocation_id: AllocationId
    sku: SpecifiedSku
    """Requested slice size."""
    image: SpecifiedImage
    """Image that the slices boot from."""
    app_profile: SpecifiedAppProfile | None
    """App profile with the requirements of the workload; null: the request named no app profile."""


class QueuedIngress(Record, frozen=True, omit_defaults=True):
    """An ingress rule that a waiting request gets when it is placed: a port, or a whole public address if it has no
    `port`.
    """

    ingress_id: IngressId
    slot: int
    """Number of the slot among those of the allocation, counted from 0."""
    sources: tuple[Ipv4Subnet, ...] = ()
    """Networks that may connect; absent: all."""
    protocol: str | None = None
    """`tcp` or `udp`; absent for a whole address."""
    port: int | None = None
    """Port of the slice; absent for a whole address."""
    public_port: int | None = None
    """Port of the public address that the request named; absent: any free one."""


class AllocationQueued(Fact, frozen=True, omit_defaults=True):
    """The request cannot be placed now and waits for capacity. It holds no slots, addresses or price meanwhile, and is
    placed in the order of `priority`, `queued_at` and id.
    """

    allocation_id: AllocationId
    project: ProjectId
    """Project that the request counts for in the limit `waiting_requests`."""
    priority: int
    """Requests with a higher priority are placed first."""
    reason: Reason
    """Why the request could not be placed at once."""
    queued_at: datetime
    """When the wait began."""
    waits_until: datetime
    """When the allocation fails unless it is placed by then."""
    ingress: tuple[QueuedIngress, ...] = ()
    """Ingress rules that are reserved with the placement."""


class AllocationDequeued(Fact, frozen=True):
    """The request does not wait any more. What follows is recorded in the same append: the placement, the release or
    the failure.
    """

    allocation_id: AllocationId
    project: ProjectId
    """Project that the request counted for, as in `allocation.queued`."""


class ReadinessCheckSet(Fact, frozen=True):
    """The image defines a readiness check of its own, in place of an SSH banner on port 22. No longer recorded:
    `allocation.specified` contains the check.
    """

    allocation_id: AllocationId
    port: int
    """TCP port of the guest."""
    banner: str
    """Required beginning of a line from that port; empty if an open port is sufficient."""


class AllocationPlaced(Fact, frozen=True):
    """Slots were chosen and claimed in the same append, all on one node."""

    allocation_id: AllocationId
    slots: tuple[PlacedSlot, ...]
    """The chosen slots."""
    deadline: datetime
    """When the allocation fails unless it is active by then."""


class AllocationReplaced(Fact, frozen=True):
    """The bring-up failed due to a node fault, and slots on another node were chosen and claimed in the same append.
    The former slots are being emptied, and stay claimed until their node proves them empty.
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
    """The node began to apply the order of one slot, or began to start its slice again after an interruption or a start
    request.
    """

    allocation_id: AllocationId
    slot_id: SlotId


class SliceAddressObserved(Fact, frozen=True):
    """The node observed the slice's address. This is evidence, never desired state (NOD-4, NOD-5)."""

    allocation_id: AllocationId
    slot_id: SlotId
    mac: MacAddress
    """MAC address of the slice."""
    expected_ip: Ipv4Address
    """Address reserved for that MAC address."""
    actual_ip: Ipv4Address | None
    """Address that the slice leased; null if it has no lease."""
    lease_state: str
    """`none`, `offered`, `bound`, `expired`, or `foreign`: the slice leased another address, or another client holds a
    lease on the expected address.
    """


class SliceReady(Fact, frozen=True):
    """The slice passed its readiness check on the management interface."""

    allocation_id: AllocationId
    slot_id: SlotId
    address: Ipv4Address
    """Address at which the guest responded."""
    port: int
    """TCP port of the check."""
    banner: str
    """Line of the guest that matched the required beginning; empty if an open port was sufficient."""


class AllocationActivated(Fact, frozen=True):
    """All slices of the allocation are ready. Recorded the first time, and again after each interruption and each
    start.
    """

    allocation_id: AllocationId


class LeaseGranted(Fact, frozen=True):
    """The requested lease time begins. Recorded with the first activation; neither an interruption nor a stop extends
    the lease, only `allocation.lease_renewed` does.
    """

    allocation_id: AllocationId
    granted_at: datetime
    """When the lease began."""
    expires_at: datetime
    """When the allocation is released, unless it ends earlier."""


class LeaseRenewed(Fact, frozen=True):
    """A caller extended the lease."""

    allocation_id: AllocationId
    expires_at: datetime
    """When the allocation is released, unless it ends earlier or the lease is extended again. It is later than before
    this event.
    """


class LeaseExpiring(Fact, frozen=True):
    """The lease ends soon. Recorded once for each configured lead time that is shorter than the time from the grant or
    the last renewal to the end. If several lead times have passed unannounced, only the shortest one is recorded.
    """

    allocation_id: AllocationId
    expires_at: datetime
    """When the allocation is released, unless it ends earlier or the lease is extended."""
    lead_seconds: int
    """The configured lead time in seconds. Less time is left if the control plane was not running when it was due."""


class SliceInterrupted(Fact, frozen=True):
    """A running slice stopped without an order: its node rebooted, or its virtual machine died."""

    allocation_id: AllocationId
    slot_id: SlotId
    reason: Reason
    deadline: datetime
    """When the allocation fails unless the slice is ready again by then."""


class AllocationStopping(Fact, frozen=True):
    """A stop was requested. The allocation keeps its slots, addresses and lease, and its slices become unreachable."""

    allocation_id: AllocationId
    reason: Reason
    deadline: datetime
    """When the allocation fails unless all its slices are off by then."""


class SliceStopped(Fact, frozen=True):
    """The node proved that one slice does not run and cannot be reached."""

    allocation_id: AllocationId
    slot_id: SlotId
    forced: bool
    """True if the guest did not shut down within its timeout and was powered off."""


class AllocationStopped(Fact, frozen=True):
    """All slices of the allocation are stopped."""

    allocation_id: AllocationId


class AllocationStarting(Fact, frozen=True):
    """The start of a stopped allocation was requested; its slices return to the same slots."""

    allocation_id: AllocationId
    reason: Reason
    deadline: datetime
    """When the allocation fails unless it is active by then."""


class LeaseExpired(Fact, frozen=True):
    """The lease reached its end. The release that follows is recorded in the same append."""

    allocation_id: AllocationId


class AllocationReleasing(Fact, frozen=True):
    """The release began: requested by a caller, or caused by the end of the lease or the drain of a node."""

    allocation_id: AllocationId
    reason: Reason


class AllocationFailed(Fact, frozen=True):
    """The allocation failed. Its slots are being emptied."""

    allocation_id: AllocationId
    reason: Reason


class LeaseEnded(Fact, frozen=True):
    """The lease is over because the allocation is being released or failed."""

    allocation_id: AllocationId


class ReleaseOverdue(Fact, frozen=True):
    """The release or failure of the allocation is not complete by its deadline, because slots still await the proof
    that they are empty. Recorded once. These slots stay quarantined until their node proves them empty, or an admin
    force-releases them.
    """

    allocation_id: AllocationId
    deadline: datetime
    """When all slots should have been proved empty. Times at which the control plane was not running do not count."""
    remaining: tuple[RemainingSlot, ...]
    """The slots that await the proof, each with the reason why it is missing."""


class SliceRemovalIncomplete(Fact, frozen=True):
    """The node still found remains of the slice after its removal; the removal is retried until it is proved
    complete.
    """

    allocation_id: AllocationId
    slot_id: SlotId
    leftovers: tuple[str, ...]
    """Remaining objects, one line each."""


class SliceRemovalRetried(Fact, frozen=True):
    """An admin requested that the slot be emptied again, because its node had refused the order to empty it or had
    stopped retrying it.

    The id of the slot's next order is derived from this event.
    """

    allocation_id: AllocationId
    slot_id: SlotId


class SliceRemoved(Fact, frozen=True):
    """The node proved that nothing is left of one slice."""

    allocation_id: AllocationId
    slot_id: SlotId


class SliceRemovalOverridden(Fact, frozen=True):
    """An admin force-released the slot without the node's proof that nothing is left of the slice (ALC-11)."""

    allocation_id: AllocationId
    slot_id: SlotId
    reason: str
    """Explanation that the admin gave."""


class AllocationReleased(Fact, frozen=True):
    """Every slot is free again: proved empty, or force-released by an admin without proof. This is the last fact of a
    released allocation.
    """

    allocation_id: AllocationId


AllocationFact = (
    AllocationRequested
    | AllocationSpecified
    | AllocationQueued
    | AllocationDequeued
    | ReadinessCheckSet
    | AllocationPlaced
    | AllocationReplaced
    | SliceStarting
    | SliceAddressObserved
    | SliceReady
    | AllocationActivated
    | LeaseGranted
    | LeaseRenewed
    | LeaseExpiring
    | SliceInterrupted
    | AllocationStopping
    | SliceStopped
    | AllocationStopped
    | AllocationStarting
    | LeaseExpired
    | AllocationReleasing
    | AllocationFailed
    | LeaseEnded
    | ReleaseOverdue
    | SliceRemovalIncomplete
    | SliceRemovalRetried
    | SliceRemoved
    | SliceRemovalOverridden
    | AllocationReleased
    | IngressFact
)
