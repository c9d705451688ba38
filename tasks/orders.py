"""Orders: what the control plane asks of a node. A closed catalogue; there is no order that runs a command.

An order carries the whole wanted state of one slot and the fence token of the fact that wanted it. Carrying
one out twice changes nothing the second time; a node refuses an older token, and the same token with other
content.
"""

import hashlib
from datetime import datetime
from typing import Annotated, Final, Literal, NamedTuple
from uuid import UUID

from pydantic import Field

from tasks.fields import (
    AllocationId,
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
    """Fence token, ordered: ledger epoch, then position of the fact that last changed the wanted state."""

    epoch: int
    position: int


MOST_MBIT: Final = 1_000_000
"""The highest rate that can be set: 1 Tbit/s, which OpenFlow counts in kbit/s."""


class SliceNetwork(Wire):
    """The slice's identity on the management plane: one port on `bridge`, one address behind `gateway`."""

    bridge: InterfaceName
    """The node's own bridge."""
    mac_address: MacAddress
    """Of the guest's card."""
    private_ip: Ipv4Address
    """The one address that the guest may have."""
    subnet: Ipv4Subnet
    """The node's own subnet."""
    gateway: Ipv4Address
    """Where the guest sends what is not for itself."""
    # Left out where there is none, as `ingress` is.
    rate_mbit: int | None = Field(default=None, ge=1, le=MOST_MBIT, exclude_if=is_none)
    """How much may pass each way, in Mbit/s (NOD-3); null: as much as may be. Of `slice.apply` alone."""


class Machine(Wire):
    """The virtual machine: sizes, image, and what its first boot is told."""

    vcpus: int = Field(ge=1, le=256)
    """Virtual processors."""
    memory_mib: int = Field(ge=32)
    """The guest's memory."""
    image: ImageName
    """What it boots from, by its name on the node."""
    hostname: str = Field(pattern=r"^[a-z][a-z0-9-]{0,62}$")
    """What the guest calls itself."""
    ssh_authorized_keys: tuple[SshPublicKey, ...] = Field(min_length=1, max_length=16)
    """Who may log in, in the words of OpenSSH's `authorized_keys`."""


LONGEST_BANNER: Final = 64
"""Characters of a banner that is listened for."""


class Readiness(Wire):
    """When the slice counts as usable: `port` answers with a line that starts with `banner`."""

    port: Port = 22
    """TCP port of the guest."""
    banner: str = Field(default="SSH-", max_length=LONGEST_BANNER)
    """What the line begins with; empty where an open port is enough."""
    deadline_seconds: int = Field(ge=1, le=3600)
    """How long it may take, from when the node takes the order up."""


class _Mapping(Wire):
    ingress_id: IngressId
    """The ingress that it serves."""
    public_address: Ipv4Address
    """One of the node's, where it comes in."""
    sources: tuple[Ipv4Subnet, ...] = Field(max_length=16)
    """Who may come; empty: everybody."""


class PortMapping(_Mapping):
    """What comes to one port of a public address goes to a port of the slice."""

    kind: Literal["port"] = "port"
    protocol: Literal["tcp", "udp"]
    """A port of each is another's."""
    public_port: Port
    """Where it comes in."""
    port: Port
    """Of the guest."""


class AddressMapping(_Mapping):
    """All that comes to a public address goes to the slice."""

    kind: Literal["address"] = "address"


Mapping = Annotated[PortMapping | AddressMapping, Field(discriminator="kind")]
"""A way in from outside (ING-2)."""
MOST_MAPPINGS: Final = 16


class ApplySlice(Wire):
    """Make the slot carry this slice, running and reachable."""

    kind: Literal["slice.apply"] = "slice.apply"
    network: SliceNetwork
    machine: Machine
    readiness: Readiness
    # Left out where there is none: an agent that knows of no ingress refuses a field that it does not know.
    ingress: tuple[Mapping, ...] = Field(default=(), max_length=MOST_MAPPINGS, exclude_if=is_empty)
    """The ways in from outside, all of them."""


class StopSlice(Wire):
    """Have the slice off: nothing runs and nothing can be reached, its reservation stays."""

    kind: Literal["slice.stop"] = "slice.stop"
    network: SliceNetwork
    grace_seconds: int = Field(ge=0, le=300)
    """How long the guest may take to shut down when it is asked to, before it is cut off."""


class RemoveSlice(Wire):
    """Make the slot carry nothing, and prove it by a fresh survey. `network` says whose traces to look for."""

    kind: Literal["slice.remove"] = "slice.remove"
    network: SliceNetwork


class Order(Wire):
    """The envelope of an order; `order_id` is the same however often it is sent."""

    schema_version: Literal[1] = 1
    order_id: UUID
    """Name of the order, and of its message in the queue."""
    node_id: NodeId
    slot_id: SlotId
    allocation_id: AllocationId
    token: Token
    """Fence token of the fact that wanted it: the ledger's epoch, then the fact's position."""
    issued_at: datetime
    """When that fact was recorded."""
    correlation_id: UUID
    """Shared by all that follows from one request."""
    causation_id: UUID
    """The event that led to it."""
    trace_context: str | None = None
    """W3C `traceparent` of the request."""
    body: Annotated[ApplySlice | StopSlice | RemoveSlice, Field(discriminator="kind")]

    def content_digest(self) -> str:
        """SHA-256 (hex) over what the order wants, whenever and however often it was sent."""
        wanted = self.model_dump_json(include={"node_id", "slot_id", "allocation_id", "token", "body"})
        return hashlib.sha256(wanted.encode()).hexdigest()
