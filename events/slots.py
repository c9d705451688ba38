"""Facts about slots, in life order. Stream: `slot-<node>/<index>`.

A slot is claimed for an allocation, and stays claimed until the node proved that nothing is left there.
"""

from events.facts import Fact, Reason, Record
from events.values import AllocationId, Ipv4Address, Ipv4Subnet, MacAddress, NodeId, SkuName, SlotId


class SlotHardware(Record, frozen=True):
    """What the host offers in this place. `network_device` is the management vNIC's host side."""

    vcpus: int
    memory_mib: int
    network_device: str


class SlotNetwork(Record, frozen=True):
    """The identity of a slot on the management plane, fixed from approval on (ALC-3, ALC-4)."""

    l2_domain: str
    mac_address: MacAddress
    private_ip: Ipv4Address
    subnet: Ipv4Subnet
    gateway: Ipv4Address
    bridge: str


class SlotDiscovered(Fact, frozen=True):
    slot_id: SlotId
    node_id: NodeId
    hardware: SlotHardware


class SlotApproved(Fact, frozen=True):
    """An admin let the slot be used; its MAC and IP are reserved by this very fact."""

    slot_id: SlotId
    sku: SkuName
    network: SlotNetwork


class SlotClaimed(Fact, frozen=True):
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


class SlotReleased(Fact, frozen=True):
    """A fresh survey found nothing left; `absent` names the kinds of things looked for."""

    slot_id: SlotId
    allocation_id: AllocationId
    absent: tuple[str, ...]


SlotFact = SlotDiscovered | SlotApproved | SlotClaimed | SlotReleasing | SlotWithheld | SlotReleased
