"""Facts about slots, in life order. Stream: `slot-<node>/<index>`.

A slot is claimed for an allocation, and stays claimed until the node proved that nothing is left there.
"""

from events.bring_ups import FailedBringUp
from events.drift import DriftFound, OpenDrift
from events.facts import Fact, Reason, Record
from events.values import (
    AllocationId,
    Ipv4Address,
    Ipv4Subnet,
    MacAddress,
    NodeId,
    PciAddress,
    SkuName,
    SlotId,
)


class SlotHardware(Record, frozen=True):
    """What the host offers in this place."""

    vcpus: int
    """Virtual processors that a slice gets here."""
    memory_mib: int
    """Memory that a slice gets here."""
    network_device: str
    """Name of the host's side of the management vNIC."""


class SlotNetwork(Record, frozen=True):
    """The identity of a slot on the management plane, fixed from approval on (ALC-3, ALC-4)."""

    l2_domain: str
    """Where the MAC address is unique."""
    mac_address: MacAddress
    """The slice's, made from the slot's id."""
    private_ip: Ipv4Address
    """The slice's address, unique in its subnet."""
    subnet: Ipv4Subnet
    """The host's, which the address is of."""
    gateway: Ipv4Address
    """The host's own address in the subnet."""
    bridge: str
    """Name of the bridge on the host."""


class SlotDevice(Record, frozen=True):
    """A PCI function of the host that a slice gets here for itself."""

    address: PciAddress
    """Where it is, by the host's settings."""
    use: str
    """`gpu`, `fabric` or `card` (its network card): what the settings give it for."""
    number: str | None
    """Vendor and device in hexadecimal, `10de:2330`; null where there was none."""
    kind: str | None
    """What the host showed there: `gpu`, `fabric`, `vf`, `bridge` or `other`; null where there was none."""
    numa_node: int | None
    """Whose memory it is near; null where the host does not say."""


class SlotDiscovered(Fact, frozen=True):
    """A host showed a place for a slice that was not known before. It waits for an admin's approval."""

    slot_id: SlotId
    node_id: NodeId
    hardware: SlotHardware


class SlotApproved(Fact, frozen=True):
    """An admin let the slot be used; its MAC and IP are reserved by this very fact."""

    slot_id: SlotId
    sku: SkuName
    """What the slot is sold as."""
    network: SlotNetwork


class SlotDevicesDescribed(Fact, frozen=True):
    """A host told which PCI functions a slice gets in this place, and it is otherwise than was known."""

    slot_id: SlotId
    devices: tuple[SlotDevice, ...]
    """All of them; empty: none any more."""
    numa_node: int | None
    """Whose memory the slices of this place get; null: any."""


class SlotDevicesGranted(Fact, frozen=True):
    """An admin let the slot have these PCI functions, each of which no other slot of its node can have then (LED-3)."""

    slot_id: SlotId
    node_id: NodeId
    devices: tuple[PciAddress, ...]
    """All that it has from here on."""
    added: tuple[PciAddress, ...]
    """Those that it did not have."""
    withdrawn: tuple[PciAddress, ...]
    """Those that it has no more."""


class SlotClaimed(Fact, frozen=True):
    """The slot was chosen for an allocation, in the append that placed it. No other can have it now."""

    slot_id: SlotId
    allocation_id: AllocationId


class SlotReleasing(Fact, frozen=True):
    """The slot is wanted empty again. It stays claimed until absence is proved."""

    slot_id: SlotId
    allocation_id: AllocationId


class SlotWithheld(Fact, frozen=True):
    """The node could not prove the slot empty; `leftovers` names what it still found."""

    slot_id: SlotId
    allocation_id: AllocationId
    reason: Reason
    leftovers: tuple[str, ...]
    """What is there, a line each."""


class SlotReleased(Fact, frozen=True):
    """A fresh survey found nothing left; `absent` names the kinds of things looked for."""

    slot_id: SlotId
    allocation_id: AllocationId
    absent: tuple[str, ...]
    """Kinds of things, a word each."""


class SlotFreedUnproved(Fact, frozen=True):
    """An admin broke the glass (ALC-11): the slot may be claimed again, although nobody proved it empty."""

    slot_id: SlotId
    allocation_id: AllocationId
    why: str
    """The admin's words."""
    leftovers: tuple[str, ...]
    """What the node had found there last, a line each; empty where it had said nothing."""


class SlotDegraded(Fact, frozen=True):
    """Something in the slot is otherwise than it was wanted, and is not mended. Nothing is placed there while any of it
    blocks.
    """

    slot_id: SlotId
    drift: tuple[OpenDrift, ...]
    """All of it, also what was told before."""


class SlotRecovered(Fact, frozen=True):
    """The slot is as it is wanted again."""

    slot_id: SlotId


class SlotMended(Fact, frozen=True):
    """Something in the slot was otherwise than it was wanted, and the host made it good at once."""

    slot_id: SlotId
    drift: tuple[DriftFound, ...]
    """What was mended."""


class SlotBringUpFailed(Fact, frozen=True):
    """A slice could not be brought up in the slot, due to a node fault."""

    slot_id: SlotId
    failures: tuple[FailedBringUp, ...]
    """The consecutive failures in the slot, oldest first, ending with this one; at most the newest 16."""


class SlotBringUpSucceeded(Fact, frozen=True):
    """A slice came up in the slot after failures there: the count of consecutive failures is 0 again. It is recorded
    only where there were failures.
    """

    slot_id: SlotId
    allocation_id: AllocationId
    """The allocation of the slice."""


class SlotExcluded(Fact, frozen=True):
    """Consecutive bring-ups failed in the slot. Nothing new is placed there until it is readmitted."""

    slot_id: SlotId
    reason: Reason
    failures: tuple[FailedBringUp, ...]
    """The evidence, oldest first."""


class SlotReadmitted(Fact, frozen=True):
    """Slices are placed in the slot again, and its count of consecutive failures is 0."""

    slot_id: SlotId
    reason: Reason
    """`bring_up_succeeded` if a slice came up there, `readmitted_by_admin` if an admin readmitted it."""


SlotFact = (
    SlotDiscovered
    | SlotApproved
    | SlotDevicesDescribed
    | SlotDevicesGranted
    | SlotClaimed
    | SlotReleasing
    | SlotWithheld
    | SlotReleased
    | SlotFreedUnproved
    | SlotDegraded
    | SlotRecovered
    | SlotMended
    | SlotBringUpFailed
    | SlotBringUpSucceeded
    | SlotExcluded
    | SlotReadmitted
)
