"""PCI functions of slots in a node's description: what they are, where they are attached, and the evidence for it.

A node reads these facts from sysfs and procfs of its host. A fact is null if the host does not report it, because the
function is of another type or because no driver of the host is bound to it. A function that is reserved for guests has
no RDMA device and no network link on the host.
"""

from typing import Annotated, Final, Literal

from pydantic import Field

from tasks.fields import Count, Flag, PciAddress, Sentence, Whole, Wire, Word, is_empty, is_none

MOST_EVIDENCE: Final = 32
LinkLayer = Literal["infiniband", "ethernet"]
LONGEST_NAME: Final = 64
_Short = Annotated[Word, Field(max_length=LONGEST_NAME)]


class FoundEvidence(Wire):
    """A file of the host that a fact was read from."""

    path: Sentence
    """Absolute path of the file or link. If the name of a network link may change, `*` stands for it."""
    value: Sentence
    """Content of the file or the part that was used, or the target of the link."""


class FoundFabric(Wire):
    """Connection of a network function to its fabric.

    Without an RDMA device of its own, such as a virtual function that is reserved for guests, a function has the link
    layer, the states and the rate of its physical function. Without a network link of its own, it has that one's MTU.
    """

    # Absent fields are omitted: a field is null for most functions.
    link_layer: LinkLayer | None = Field(default=None, exclude_if=is_none)
    """Link layer of the port. If no RDMA device reports it, it follows from the class of the PCI function."""
    rdma_device: _Short | None = Field(default=None, exclude_if=is_none)
    """Name of the function's RDMA device, such as `mlx5_0`; an Ethernet function with such a device supports RoCE."""
    port_state: _Short | None = Field(default=None, exclude_if=is_none)
    """State of the RDMA port, such as `active` or `down`; without RDMA, the operational state of the network link."""
    physical_state: _Short | None = Field(default=None, exclude_if=is_none)
    """Physical state of the RDMA port, such as `link_up` or `polling`."""
    rate_mbit: Count | None = Field(default=None, exclude_if=is_none)
    """Rate of the port in Mbit/s."""
    mtu: Count | None = Field(default=None, exclude_if=is_none)
    """MTU of the network link in bytes."""
    guid: _Short | None = Field(default=None, exclude_if=is_none)
    """GUID of the RDMA device, such as `b83f:d203:00a1:b2c3`."""
    mac: _Short | None = Field(default=None, exclude_if=is_none)
    """MAC address of the function's Ethernet link."""


class FoundDevice(Wire):
    """A PCI function that the node's settings assign to a slot, and the properties that the host reports for it."""

    address: PciAddress
    """PCI address."""
    use: Literal["gpu", "fabric", "card"]
    """Purpose of the function."""
    number: Word | None = Field(max_length=9)
    """Vendor and device id in hexadecimal, such as `10de:2330`; null if the node found no function at this address."""
    kind: Word | None = Field(max_length=16)
    """Kind of function, by its class and its devices; null if none was found."""
    numa_node: Whole | None = Field(ge=0, le=1023)
    """NUMA node that the function is attached to; null if the host does not report it."""
    # The following fields are omitted if absent: a control plane without support for them refuses an unknown field.
    unreadable: Sentence | None = Field(default=None, exclude_if=is_none)
    """Reason why the function or its facts could not be read; null if they were read, and if no function was found."""
    model: Word | None = Field(default=None, exclude_if=is_none)
    """Model name that the driver reports, else the one that belongs to the device id; null if it is unknown."""
    memory_mib: Count | None = Field(default=None, exclude_if=is_none)
    """Memory of a GPU of this model, in MiB; null for an unknown model."""
    bar_mib: Count | None = Field(default=None, exclude_if=is_none)
    """Size of the largest prefetchable 64-bit BAR of a GPU, in MiB; the memory may be smaller or larger."""
    uuid: _Short | None = Field(default=None, exclude_if=is_none)
    """UUID of a GPU, such as `GPU-9221d5d1-b60b-a624-bf14-0a1819cfda3b`; null unless the NVIDIA driver reports it."""
    iommu_group: _Short | None = Field(default=None, exclude_if=is_none)
    """IOMMU group; null if the host does not use an IOMMU."""
    root_port: PciAddress | None = Field(default=None, exclude_if=is_none)
    """Topmost bridge above the function; null if the function is on a root bus."""
    physical_function: PciAddress | None = Field(default=None, exclude_if=is_none)
    """Physical function of a virtual function; null for other functions."""
    vf_number: Whole | None = Field(default=None, ge=0, le=65535, exclude_if=is_none)
    """Number of a virtual function within its physical function, from 0."""
    representor: _Short | None = Field(default=None, exclude_if=is_none)
    """Port name, such as `pf0vf3`, of a virtual function's representor: the link on which the node handles its traffic.
    Null if its card is not in switchdev mode.
    """
    fabric_metadata: FoundFabric | None = Field(default=None, exclude_if=is_none)
    """Connection of a network function to its fabric: link layer, states and rate of the port; null for a GPU."""
    evidence: tuple[FoundEvidence, ...] = Field(default=(), max_length=MOST_EVIDENCE, exclude_if=is_empty)
    """Files from which the other fields were read, with their contents, ordered by path."""


class DeviceReading(Wire):
    """What a PCI function reported about its health after a slice was removed. A value is null if the host does not
    report it.
    """

    # Absent fields are omitted.
    address: PciAddress
    """PCI address, from the node's settings."""
    responds: Flag | None = Field(default=None, exclude_if=is_none)
    """False if each byte of the function's configuration space reads as 0xFF: the function does not respond."""
    link_mtps: Count | None = Field(default=None, exclude_if=is_none)
    """Speed of the function's PCIe link, in million transfers per second."""
    link_width: Count | None = Field(default=None, exclude_if=is_none)
    """Number of lanes that the link uses."""
    most_link_mtps: Count | None = Field(default=None, exclude_if=is_none)
    """Highest speed that both ends of the link support."""
    most_link_width: Count | None = Field(default=None, exclude_if=is_none)
    """Largest number of lanes that both ends of the link support."""
    bars: tuple[Annotated[Whole, Field(ge=0, lt=2**63)], ...] = Field(
        default=(), max_length=6, exclude_if=is_empty
    )
    """Sizes of the BARs in bytes."""
    fatal_errors: Count | None = Field(default=None, exclude_if=is_none)
    """Number of uncorrectable fatal errors since the host started (PCIe AER)."""
    nonfatal_errors: Count | None = Field(default=None, exclude_if=is_none)
    """Number of uncorrectable nonfatal errors since the host started (PCIe AER)."""
    unreadable: Sentence | None = Field(default=None, exclude_if=is_none)
    """Reason why the function could not be read."""
