"""Facts about slots, in the order of their life cycle. Stream: `slot-<node>/<index>`.

A slot is claimed for an allocation, and stays claimed until the node proves that nothing is left in it.
"""

from events.drift import DriftFound, OpenDrift
from events.facts import Fact, FailedBringUp, Reason, Record
from events.values import (
    AllocationId,
    Ipv4Address,
    Ipv4Subnet,
    MacAddress,
    NodeId,
    PciAddress,
    ProjectId,
    SkuName,
    SlotId,
)


class SlotHardware(Record, frozen=True):
    """Hardware that the node offers in a slot."""

    vcpus: int
    """Virtual processors of a slice in this slot."""
    memory_mib: int
    """Memory of a slice in this slot, in MiB."""
    network_device: str
    """Name of the node's end of the management vNIC."""


class SlotNetwork(Record, frozen=True):
    """The identity of a slot on the management network, fixed until the slot is reprovisioned (ALC-3, ALC-4)."""

    l2_domain: str
    """Layer-2 domain in which the MAC address is unique."""
    mac_address: MacAddress
    """MAC address of the slice, derived from the slot's id."""
    private_ip: Ipv4Address
    """Address of the slice, unique in its subnet."""
    subnet: Ipv4Subnet
    """Subnet of the node, which contains the address."""
    gateway: Ipv4Address
    """Address of the node in the subnet."""
    bridge: str
    """Name of the bridge on the node."""


class DeviceEvidence(Record, frozen=True):
    """A file of a node that a fact about a PCI function was read from."""

    path: str
    """Absolute path of the file or link. If the name of a network link may change, `*` stands for it."""
    value: str
    """Content of the file or the part that was used, or the target of the link."""


class FabricMetadata(Record, frozen=True):
    """Connection of a network function to its fabric. A field is null if the node does not report it.

    Without an RDMA device of its own, such as a virtual function that is reserved for guests, a function has the link
    layer, the states and the rate of its physical function. Without a network link of its own, it has that one's MTU.
    """

    link_layer: str | None = None
    """`infiniband` or `ethernet`. If no RDMA device reports it, it follows from the class of the PCI function."""
    rdma_device: str | None = None
    """Name of the function's RDMA device, such as `mlx5_0`; an Ethernet function with such a device supports RoCE."""
    port_state: str | None = None
    """State of the RDMA port, such as `active` or `down`; without RDMA, the operational state of the network link."""
    physical_state: str | None = None
    """Physical state of the RDMA port, such as `link_up` or `polling`."""
    rate_mbit: int | None = None
    """Rate of the port in Mbit/s."""
    mtu: int | None = None
    """MTU of the network link in bytes."""
    guid: str | None = None
    """GUID of the RDMA device, such as `b83f:d203:00a1:b2c3`."""
    mac: str | None = None
    """MAC address of the function's Ethernet link."""


class SlotDevice(Record, frozen=True):
    """A PCI function of the node that is passed through to the slice in this slot."""

    address: PciAddress
    """PCI address, from the node's settings."""
    use: str
    """`gpu`, `fabric` or `card` (the slice's network card): the purpose according to the node's settings."""
    number: str | None
    """Vendor and device id in hexadecimal, such as `10de:2330`; null if the node found no function at this address."""
    kind: str | None
    """Kind of function that the node found: `gpu`, `fabric`, `vf`, `bridge` or `other`; null if it found none."""
    numa_node: int | None
    """NUMA node that the function is attached to; null if the node does not report it."""
    unreadable: str | None = None
    """Reason why the function or its facts could not be read; null if they were read, and if no function was found."""
    model: str | None = None
    """Model name that the driver reports, else the one that belongs to the device id; null if it is unknown."""
    memory_mib: int | None = None
    """Memory of a GPU of this model, in MiB; null for an unknown model."""
    bar_mib: int | None = None
    """Size of the largest prefetchable 64-bit BAR of a GPU, in MiB; the memory may be smaller or larger."""
    uuid: str | None = None
    """UUID of a GPU; null unless the NVIDIA driver of the node reports it."""
    iommu_group: str | None = None
    """IOMMU group; null if the node does not use an IOMMU."""
    root_port: PciAddress | None = None
    """Topmost bridge above the function; null if the function is on a root bus."""
    physical_function: PciAddress | None = None
    """Physical function of a virtual function; null for other functions."""
    vf_number: int | None = None
    """Number of a virtual function within its physical function, from 0."""
    representor: str | None = None
    """Port name, such as `pf0vf3`, of a virtual function's representor: the link on which the node handles its traffic.
    Null if its card is not in switchdev mode.
    """
    fabric_metadata: FabricMetadata | None = None
    """Connection of a network function to its fabric: link layer, states and rate of the port; null for a GPU."""
    evidence: tuple[DeviceEvidence, ...] = ()
    """Files from which the other fields were read, with their contents, ordered by path."""


class ApprovedDevice(Record, frozen=True):
    """Properties of a PCI function that an admin approved. The states, rate and MTU of a port and the driver in use are
    not among them, because they change while the hardware stays the same.
    """

    address: PciAddress
    """PCI address."""
    use: str
    """`gpu`, `fabric` or `card`: the purpose according to the node's settings."""
    number: str | None
    """Vendor and device id; null if there was no readable function at this address."""
    numa_node: int | None
    """NUMA node that the function is attached to."""
    iommu_group: str | None
    """IOMMU group."""
    root_port: PciAddress | None
    """Topmost bridge above the function."""
    physical_function: PciAddress | None
    """Physical function of a virtual function."""
    vf_number: int | None
    """Number of a virtual function within its physical function."""
    model: str | None
    """Model name; null if it was unknown."""
    memory_mib: int | None
    """Memory of a GPU in MiB; null if it was unknown."""
    uuid: str | None
    """UUID of a GPU; null if it was unknown."""
    link_layer: str | None
    """Link layer of a network function; null if it was unknown."""


class ApprovedHardware(Record, frozen=True):
    """Hardware that an approval binds a slot to (ALC-2)."""

    vcpus: int
    """Virtual processors of a slice in this slot."""
    memory_mib: int
    """Memory of a slice in this slot, in MiB."""
    numa_node: int | None
    """NUMA node that provides the memory of slices in this slot; null for any."""
    devices: tuple[ApprovedDevice, ...]
    """PCI functions of the slot, ordered by address."""


class CheckedDevice(Record, frozen=True):
    """What a PCI function reported about its health after a release, and the faults that follow from it. A value is
    null if the node does not report it.
    """

    address: PciAddress
    """PCI address."""
    faults: tuple[str, ...] = ()
    """Faults of the function, one sentence each; empty if it has none."""
    responds: bool | None = None
    """False if each byte of the function's configuration space reads as 0xFF."""
    link_mtps: int | None = None
    """Speed of the PCIe link, in million transfers per second."""
    link_width: int | None = None
    """Number of lanes that the link uses."""
    most_link_mtps: int | None = None
    """Highest speed that both ends of the link support."""
    most_link_width: int | None = None
    """Largest number of lanes that both ends of the link support."""
    bars: tuple[int, ...] = ()
    """Sizes of the BARs in bytes."""
    fatal_errors: int | None = None
    """Number of uncorrectable fatal errors since the node started (PCIe AER)."""
    nonfatal_errors: int | None = None
    """Number of uncorrectable nonfatal errors since the node started (PCIe AER)."""
    unreadable: str | None = None
    """Reason why the function could not be read."""


class SlotUse(Record, frozen=True):
    """What a slot counts towards quotas (ALC-13) while an allocation holds it, from its claim until it is free again.
    The sizes and the price are those of the SKU of the allocation, for one slot.
    """

    project: ProjectId
    """Project of the allocation."""
    principal: str
    """Actor that requested the allocation, such as `key:ci-0c1d2e3f4a5b`."""
    gpus: int
    """Number of GPUs."""
    vcpus: int
    """Virtual processors."""
    memory_mib: int
    """Memory in MiB."""
    price_per_hour: str
    """Price per hour, a decimal number in the currency of the deployment."""
    sku: SkuName
    """SKU of the allocation, which counts towards a reservation of the project."""


class SlotDiscovered(Fact, frozen=True):
    """A node reported a slot for the first time. The slot waits for an admin's approval."""

    slot_id: SlotId
    node_id: NodeId
    hardware: SlotHardware


class SlotApproved(Fact, frozen=True):
    """An admin approved the slot; its MAC and IP addresses are reserved in the same append."""

    slot_id: SlotId
    skus: tuple[SkuName, ...]
    """SKUs under which the slot is offered, in alphabetical order."""
    network: SlotNetwork


class SlotSkusChanged(Fact, frozen=True):
    """An admin offered the slot under other SKUs. Allocations that hold the slot keep it."""

    slot_id: SlotId
    skus: tuple[SkuName, ...]
    """SKUs under which the slot is offered from now on, in alphabetical order."""


class SlotRetired(Fact, frozen=True):
    """An admin retired the free slot: no slice is placed in it until it is approved again. It keeps its MAC and IP
    addresses.
    """

    slot_id: SlotId
    reason: str
    """Explanation that the admin gave."""


class SlotReinstated(Fact, frozen=True):
    """An admin approved the retired slot again. It is free and has the MAC and IP addresses that it had before."""

    slot_id: SlotId
    skus: tuple[SkuName, ...]
    """SKUs under which the slot is offered, in alphabetical order."""


class SlotReprovisioned(Fact, frozen=True):
    """An admin reprovisioned the free slot: it has another MAC and another IP address, which are reserved in the same
    append, and the reservation of the previous ones ends.
    """

    slot_id: SlotId
    reason: str
    """Explanation that the admin gave."""
    network: SlotNetwork
    """MAC, IP address and bridge that the slot has from this event on. Later orders contain them."""
    previous: SlotNetwork
    """MAC, IP address and bridge that the slot had until this event."""


class SlotDevicesDescribed(Fact, frozen=True):
    """A node described the PCI functions that slices in this slot get, and the description differs from the one that
    was recorded before.
    """

    slot_id: SlotId
    devices: tuple[SlotDevice, ...]
    """All PCI functions of the slot; empty if there are none any more."""
    numa_node: int | None
    """NUMA node that provides the memory of slices in this slot; null for any."""


class SlotDevicesGranted(Fact, frozen=True):
    """An admin granted these PCI functions to the slot; until withdrawn, no other slot can have them (LED-3)."""

    slot_id: SlotId
    node_id: NodeId
    devices: tuple[PciAddress, ...]
    """All PCI functions granted to the slot from now on."""
    added: tuple[PciAddress, ...]
    """PCI functions that the slot did not have before."""
    withdrawn: tuple[PciAddress, ...]
    """PCI functions that the slot no longer has."""


class SlotHardwareApproved(Fact, frozen=True):
    """An admin approved the hardware of the slot as its node described it. Hardware that differs from it later is drift
    of the kind `slot.changed`, which blocks placement in the slot (ALC-2).
    """

    slot_id: SlotId
    hardware: ApprovedHardware
    """The approved hardware, which replaces the hardware that was approved before."""


# `omit_defaults`: a slot that counts towards no quota is stored in the bytes of the first version.
class SlotClaimed(Fact, frozen=True, omit_defaults=True):
    """The slot was chosen for an allocation, in the append that placed the allocation. No other allocation can claim
    it now.
    """

    slot_id: SlotId
    allocation_id: AllocationId
    use: SlotUse | None = None
    """What the slot counts towards quotas from now on; absent if nothing."""


class SlotReleasing(Fact, frozen=True):
    """The slot is to be emptied. It stays claimed until the node proves it empty."""

    slot_id: SlotId
    allocation_id: AllocationId


class SlotQuarantined(Fact, frozen=True):
    """The slot is quarantined: the node could not prove it empty, or did not prove it by the deadline of the release.
    `leftovers` lists what the node still found.
    """

    slot_id: SlotId
    allocation_id: AllocationId
    reason: Reason
    leftovers: tuple[str, ...]
    """Remaining objects, one line each; empty if the deadline passed without a report."""


class SlotReleased(Fact, frozen=True, omit_defaults=True):
    """The slot is free: a fresh survey found no remains of the slice. `absent` lists the kinds of objects that were
    searched for.
    """

    slot_id: SlotId
    allocation_id: AllocationId
    absent: tuple[str, ...]
    """Kinds of objects, one word each."""
    use: SlotUse | None = None
    """What the slot counted towards quotas until now; absent if nothing."""


class SlotDevicesChecked(Fact, frozen=True):
    """The node read the health of the slot's PCI functions after the slot was emptied and the functions were reset. A
    fault excludes the slot from placement.
    """

    slot_id: SlotId
    allocation_id: AllocationId
    """Allocation that had the functions until the release."""
    devices: tuple[CheckedDevice, ...]
    """All PCI functions of the slot."""


class SlotForceReleased(Fact, frozen=True, omit_defaults=True):
    """An admin force-released the slot (ALC-11): it may be claimed again, although its node did not prove it empty."""

    slot_id: SlotId
    allocation_id: AllocationId
    reason: str
    """Explanation that the admin gave."""
    leftovers: tuple[str, ...]
    """Remaining objects that the node reported last, one line each; empty if it reported nothing."""
    use: SlotUse | None = None
    """What the slot counted towards quotas until now; absent if nothing."""


class SlotDegraded(Fact, frozen=True):
    """Something in the slot differs from its desired state and could not be repaired. No slice is placed in the slot
    while drift that blocks placement is open.
    """

    slot_id: SlotId
    drift: tuple[OpenDrift, ...]
    """All open drift of the slot, including drift that was recorded before."""


class SlotRecovered(Fact, frozen=True):
    """The slot has no open drift any more."""

    slot_id: SlotId


class SlotRepaired(Fact, frozen=True):
    """Something in the slot differed from its desired state, and the node repaired it at once."""

    slot_id: SlotId
    drift: tuple[DriftFound, ...]
    """The repaired drift."""


class SlotBringUpFailed(Fact, frozen=True):
    """A slice could not be brought up in the slot because of a node fault."""

    slot_id: SlotId
    failures: tuple[FailedBringUp, ...]
    """The consecutive failures in the slot, oldest first, ending with this one; at most the newest 16."""


class SlotBringUpSucceeded(Fact, frozen=True):
    """A slice came up in the slot after failed bring-ups, which resets the count of consecutive failures to 0. Recorded
    only if there were failures.
    """

    slot_id: SlotId
    allocation_id: AllocationId
    """The allocation of the slice."""


class SlotExcluded(Fact, frozen=True):
    """The slot was excluded from placement, because consecutive bring-ups failed in it, a PCI function has a fault, or
    a caller reported a fault. No slice is placed in the slot until it is readmitted.
    """

    slot_id: SlotId
    reason: Reason
    failures: tuple[FailedBringUp, ...]
    """The failures that caused the exclusion, oldest first; empty for a fault."""


class SlotReadmitted(Fact, frozen=True):
    """The slot is used for placement again, and its count of consecutive failures is 0."""

    slot_id: SlotId
    reason: Reason
    """`bring_up_succeeded` if a slice came up there, `readmitted_by_admin` if an admin readmitted it."""


SlotFact = (
    SlotDiscovered
    | SlotApproved
    | SlotSkusChanged
    | SlotRetired
    | SlotReinstated
    | SlotReprovisioned
    | SlotDevicesDescribed
    | SlotDevicesGranted
    | SlotHardwareApproved
    | SlotClaimed
    | SlotReleasing
    | SlotQuarantined
    | SlotReleased
    | SlotDevicesChecked
    | SlotForceReleased
    | SlotDegraded
    | SlotRecovered
    | SlotRepaired
    | SlotBringUpFailed
    | SlotBringUpSucceeded
    | SlotExcluded
    | SlotReadmitted
)
