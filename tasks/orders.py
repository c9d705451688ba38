"""Orders: what the control plane asks of a node. A closed catalogue; there is no order that runs a command.

An order carries the whole wanted state of one slot and the fence token of the fact that wanted it. Carrying
one out twice changes nothing the second time; a node refuses an older token, and the same token with other
content.
"""

import hashlib
from datetime import datetime
from typing import Annotated, Literal, NamedTuple
from uuid import UUID

from pydantic import Field

from tasks.fields import (
    AllocationId,
    ImageName,
    InterfaceName,
    Ipv4Address,
    Ipv4Subnet,
    MacAddress,
    NodeId,
    SlotId,
    SshPublicKey,
    Wire,
)


class Token(NamedTuple):
    """Fence token, ordered: ledger epoch, then position of the fact that last changed the wanted state."""

    epoch: int
    position: int


class SliceNetwork(Wire):
    """The slice's identity on the management plane: one port on `bridge`, one address behind `gateway`."""

    bridge: InterfaceName
    mac_address: MacAddress
    private_ip: Ipv4Address
    subnet: Ipv4Subnet
    gateway: Ipv4Address


class Machine(Wire):
    """The virtual machine: sizes, image, and what its first boot is told."""

    vcpus: int = Field(ge=1, le=256)
    memory_mib: int = Field(ge=32)
    image: ImageName
    hostname: str = Field(pattern=r"^[a-z][a-z0-9-]{0,62}$")
    ssh_authorized_keys: tuple[SshPublicKey, ...] = Field(min_length=1, max_length=16)


class Readiness(Wire):
    """When the slice counts as usable: `port` answers with a line that starts with `banner`."""

    port: int = Field(default=22, ge=1, le=65535)
    banner: str = Field(default="SSH-", max_length=64)
    deadline_seconds: int = Field(ge=1, le=3600)


class ApplySlice(Wire):
    """Make the slot carry this slice, running and reachable."""

    kind: Literal["slice.apply"] = "slice.apply"
    network: SliceNetwork
    machine: Machine
    readiness: Readiness


class RemoveSlice(Wire):
    """Make the slot carry nothing, and prove it by a fresh survey. `network` says whose traces to look for."""

    kind: Literal["slice.remove"] = "slice.remove"
    network: SliceNetwork


class Order(Wire):
    """The envelope of an order; `order_id` is the same however often it is sent."""

    schema_version: Literal[1] = 1
    order_id: UUID
    node_id: NodeId
    slot_id: SlotId
    allocation_id: AllocationId
    token: Token
    issued_at: datetime
    correlation_id: UUID
    causation_id: UUID
    trace_context: str | None = None
    body: Annotated[ApplySlice | RemoveSlice, Field(discriminator="kind")]

    def content_digest(self) -> str:
        """SHA-256 (hex) over what the order wants, whenever and however often it was sent."""
        wanted = self.model_dump_json(include={"node_id", "slot_id", "allocation_id", "token", "body"})
        return hashlib.sha256(wanted.encode()).hexdigest()
