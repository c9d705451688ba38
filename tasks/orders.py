"""Orders: desired states that the control plane sends to nodes. No type of order contains a command to execute.

An order contains the complete desired state of one slot and the fence token of the fact that last changed it. A second
execution of an order changes nothing; a node refuses an order with an older token, and the same token with other
content.
"""

import hashlib
from datetime import datetime
from typing import Annotated, Final, Literal, NamedTuple
from uuid import UUID

from pydantic import Field

from events.values import NetworkMode
from tasks.fields import (
    AllocationId,
    ImageDigest,
    ImageName,
    IngressId,
    InterfaceName,
    Ipv4Address,
    Ipv4Subnet,
    MacAddress,
    NodeId,
    Port,
    SlotId,
    SshPublicKey,
    Wire,
    is_empty,
    is_none,
)


class Token(NamedTuple):
    """Fence token: the ledger's epoch, and the position of the fact that last changed the desired state. Tokens are
    compared by epoch, then position.
    """

    epoch: int
    position: int


MOST_MBIT: Final = 1_000_000
"""Highest rate limit in Mbit/s that can be set (1 Tbit/s), because OpenFlow stores a rate in kbit/s in 32 bits."""


class SliceNetwork(Wire):
    """The slice's identity on the management network: one port on `bridge`, one address behind `gateway`."""

    bridge: InterfaceName
    """Name of the bridge on the node."""
    mac_address: MacAddress
    """MAC address of the guest's network card."""
    private_ip: Ipv4Address
    """The only address that the guest may use."""
    subnet: Ipv4Subnet
    """Subnet of the node."""
    gateway: Ipv4Address
    """Default gateway of the guest."""
    # Omitted if null, as `ingress` is if empty.
    rate_mbit: int | None = Field(default=None, ge=1, le=MOST_MBIT, exclude_if=is_none)
    """Rate limit in each direction, in Mbit/s (NOD-3); null: no limit. Only orders of the kind `slice.apply` use it."""


MOST_USER_DATA_BYTES: Final = 16 * 1024
"""Maximum size of the user-data of a slice in UTF-8."""


class RootDisk(Wire):
    """The root disk of a slice, which is created from a disk image and keeps its content until the slice is removed."""

    digest: ImageDigest
    """Digest of the disk image; the node verifies it after the download."""
    format: Literal["qcow2", "raw"]
    """Format of the disk image."""
    image_bytes: int = Field(ge=1, le=2**50)
    """Size of the disk image, which the node never exceeds when it downloads the image."""
    size_gib: int = Field(ge=1, le=65536)
    """Size of the root disk."""
    firmware: Literal["uefi", "bios"]
    """Firmware that boots the disk."""


class Machine(Wire):
    """The virtual machine of a slice: sizes, image, and data for its first boot."""

    vcpus: int = Field(ge=1, le=256)
    """Number of virtual processors of the guest."""
    memory_mib: int = Field(ge=32)
    """Memory of the guest in MiB."""
    image: ImageName
    """Name of the boot image on the node."""
    hostname: str = Field(pattern=r"^[a-z][a-z0-9-]{0,62}$")
    """Host name of the guest."""
    ssh_authorized_keys: tuple[SshPublicKey, ...] = Field(min_length=1, max_length=16)
    """Public keys that may log in, as OpenSSH `authorized_keys` lines."""
    # Omitted if null: an agent without support for root disks refuses the unknown field.
    root_disk: RootDisk | None = Field(default=None, exclude_if=is_none)
    """Root disk; null: the guest boots the kernel of `image` and has no root disk."""
    user_data: str | None = Field(default=None, max_length=MOST_USER_DATA_BYTES, exclude_if=is_none)
    """User-data that cloud-init runs at the first boot of the guest; null: none."""


LONGEST_BANNER: Final = 64
"""Maximum length of a readiness banner in characters."""


class Readiness(Wire):
    """Condition under which a slice is ready: its TCP `port` sends a line that starts with `banner`."""

    port: Port = 22
    """TCP port of the guest."""
    banner: str = Field(default="SSH-", max_length=LONGEST_BANNER)
    """Required beginning of the line; empty if an open port is sufficient."""
    deadline_seconds: int = Field(ge=1, le=3600)
    """Maximum time until the slice is ready, counted from the start of the order on the node."""


class _Mapping(Wire):
    ingress_id: IngressId
    """Id of the ingress rule."""
    public_address: Ipv4Address
    """One of the node's public addresses."""
    sources: tuple[Ipv4Subnet, ...] = Field(max_length=16)
    """Networks that may connect; empty permits all."""


class PortMapping(_Mapping):
    """An ingress rule that forwards one port of a public address to a port of the slice."""

    kind: Literal["port"] = "port"
    protocol: Literal["tcp", "udp"]
    """Protocol; a TCP port and a UDP port of the same number are independent."""
    public_port: Port
    """Port on the public address."""
    port: Port
    """Port of the guest."""


class AddressMapping(_Mapping):
    """An ingress rule that forwards all traffic of a public address to the slice."""

    kind: Literal["address"] = "address"


Mapping = Annotated[PortMapping | AddressMapping, Field(discriminator="kind")]
"""An ingress rule of a slice: it forwards one port of a public address, or all traffic of the address (ING-2)."""
MOST_MAPPINGS: Final = 16


class ApplySlice(Wire):
    """Order to run a slice in the slot and to make the slice reachable."""

    kind: Literal["slice.apply"] = "slice.apply"
    network: SliceNetwork
    machine: Machine
    readiness: Readiness
    # Omitted if empty: an agent without support for ingress rules refuses the unknown field.
    ingress: tuple[Mapping, ...] = Field(default=(), max_length=MOST_MAPPINGS, exclude_if=is_empty)
    """All ingress rules of the slice."""

    @property
    def network_mode(self) -> NetworkMode:
        """The network mode of the slice, as `network_mode_of` derives it from the ingress rules."""
        return network_mode_of(self.ingress)


def network_mode_of(ingress: tuple[Mapping, ...]) -> NetworkMode:
    """Return the network mode of a slice with the given ingress rules.

    Orders do not contain the mode, because on a node the two modes differ only in the rules: a slice without rules is
    the same in both. A future mode with any other difference would need a field in `SliceNetwork`.
    """
    return "public-nat" if ingress else "private-nat"


class StopSlice(Wire):
    """Order to stop a slice: it neither runs nor can be reached, and its DHCP reservation stays."""

    kind: Literal["slice.stop"] = "slice.stop"
    network: SliceNetwork
    grace_seconds: int = Field(ge=0, le=300)
    """Time in seconds for the guest to shut down before it is powered off."""


class RemoveSlice(Wire):
    """Order to empty the slot, and to prove by a fresh survey that it is empty. `network` identifies the remains to
    search for.
    """

    kind: Literal["slice.remove"] = "slice.remove"
    network: SliceNetwork


class Order(Wire):
    """The envelope of an order. Its `order_id` is the same however often the order is sent."""

    schema_version: Literal[1] = 1
    order_id: UUID
    """Id of the order, and of its message in the queue."""
    node_id: NodeId
    slot_id: SlotId
    allocation_id: AllocationId
    token: Token
    """Fence token of the fact that last changed the desired state: the ledger's epoch, then the fact's position."""
    issued_at: datetime
    """When the fact that last changed the desired state was recorded."""
    correlation_id: UUID
    """Id shared by everything that follows from one request."""
    causation_id: UUID
    """Id of the event that caused the order."""
    trace_context: str | None = None
    """W3C `traceparent` with the trace of the request and the causing event as parent."""
    body: Annotated[ApplySlice | StopSlice | RemoveSlice, Field(discriminator="kind")]

    def content_digest(self) -> str:
        """Return the SHA-256 (hex) of the desired state in the order. The digest is the same however often and whenever
        the order is sent.
        """
        content = self.model_dump_json(include={"node_id", "slot_id", "allocation_id", "token", "body"})
        return hashlib.sha256(content.encode()).hexdigest()
