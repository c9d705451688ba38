"""Facts about ways in from outside, in life order. Stream: `allocation-<allocation_id>`.

Such a fact changes what a slot of the allocation is to carry, as the allocation's own do, so all of them stand in one
stream (ING-1).
"""

from datetime import datetime

from events.facts import Fact, Reason, Record
from events.values import AllocationId, IngressId, Ipv4Address, Ipv4Subnet, SlotId


class Service(Record, frozen=True):
    """One port of a public address, and the port of the slice that it leads to."""

    protocol: str
    """`tcp` or `udp`."""
    public_port: int
    """Where it comes in."""
    port: int
    """Of the slice."""


class IngressMapping(Record, frozen=True):
    """Where something comes in, and who may."""

    public_address: Ipv4Address
    """One of the host's."""
    service: Service | None
    """Null where all that comes to the address is for the slice."""
    sources: tuple[Ipv4Subnet, ...]
    """Who may come; empty: everybody."""


class IngressReserved(Fact, frozen=True):
    """A way in was asked for and not refused: its public address and port are claimed by this very fact."""

    allocation_id: AllocationId
    slot_id: SlotId
    ingress_id: IngressId
    mapping: IngressMapping
    deadline: datetime | None
    """When it is withdrawn unless it leads to the slice; null where its slice's placement or start says that."""


class IngressPublished(Fact, frozen=True):
    """The node found that it leads to the slice, as it should."""

    allocation_id: AllocationId
    ingress_id: IngressId


class IngressLost(Fact, frozen=True):
    """The node found that it does not lead to the slice any more, and could not mend that."""

    allocation_id: AllocationId
    ingress_id: IngressId


class IngressWithdrawn(Fact, frozen=True):
    """It is to go. Its public address and port stay claimed until it is proved gone."""

    allocation_id: AllocationId
    slot_id: SlotId
    ingress_id: IngressId
    reason: Reason


class IngressRemoved(Fact, frozen=True):
    """Nothing leads there any more: by the node's proof, or by an admin's word who gave its slot back without one."""

    allocation_id: AllocationId
    ingress_id: IngressId
    mapping: IngressMapping
    """What is free again."""


IngressFact = IngressReserved | IngressPublished | IngressLost | IngressWithdrawn | IngressRemoved
