"""Facts about ingress rules, in the order of their life cycle. Stream: `allocation-<allocation_id>`.

An ingress rule changes the desired state of one of the allocation's slots, as the allocation's own facts do, so that
both are recorded in one stream (ING-1).
"""

from datetime import datetime

from events.facts import Fact, Reason, Record
from events.values import AllocationId, IngressId, Ipv4Address, Ipv4Subnet, ProjectId, SlotId


class Service(Record, frozen=True):
    """One port of a public address, and the port of the slice that it forwards to."""

    protocol: str
    """`tcp` or `udp`."""
    public_port: int
    """Port on the public address."""
    port: int
    """Port of the slice to which the traffic is forwarded."""


class IngressRule(Record, frozen=True):
    """Public address, port and permitted sources of an ingress rule."""

    public_address: Ipv4Address
    """One of the node's public addresses."""
    service: Service | None
    """The forwarded port; null if all traffic to the address goes to the slice."""
    sources: tuple[Ipv4Subnet, ...]
    """Networks that may connect; empty permits all."""


# `omit_defaults`: a rule that counts towards no quota is stored in the bytes of the first version.
class IngressReserved(Fact, frozen=True, omit_defaults=True):
    """An ingress rule was requested and accepted; its public address and port are claimed in the same append."""

    allocation_id: AllocationId
    slot_id: SlotId
    ingress_id: IngressId
    rule: IngressRule
    deadline: datetime | None
    """When the rule is withdrawn unless it is published by then; null if the deadline of the slice's placement or start
    applies."""
    project: ProjectId | None = None
    """Project that the public address or port counts for from now on (ALC-13); absent if it counts for none."""


class IngressPublished(Fact, frozen=True):
    """The node verified that the ingress rule forwards traffic to the slice."""

    allocation_id: AllocationId
    ingress_id: IngressId


class IngressLost(Fact, frozen=True):
    """The node found that the public address and port do not lead to the slice: nothing in the slice answers on the
    port, or the rule is missing or blocked and the node could not repair that.
    """

    allocation_id: AllocationId
    ingress_id: IngressId


class IngressWithdrawn(Fact, frozen=True):
    """The ingress rule is to be removed. Its public address and port stay claimed until the removal is proved."""

    allocation_id: AllocationId
    slot_id: SlotId
    ingress_id: IngressId
    reason: Reason


class IngressRemoved(Fact, frozen=True, omit_defaults=True):
    """The ingress rule no longer exists: the node proved it, or an admin force-released the slot without proof."""

    allocation_id: AllocationId
    ingress_id: IngressId
    rule: IngressRule
    """Public address and port that are free again."""
    project: ProjectId | None = None
    """Project that the public address or port counted for until now; absent if it counted for none."""


IngressFact = IngressReserved | IngressPublished | IngressLost | IngressWithdrawn | IngressRemoved
