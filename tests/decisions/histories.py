"""Event histories of an allocation with two slots, one history for each state of the allocation."""

from datetime import UTC, datetime, timedelta

from control_plane.decisions.fleet.slots import network_of
from deploy.embedded.lab_catalogue import GUEST, SMALL
from events.allocations import (
    AllocationActivated,
    AllocationFact,
    AllocationPlaced,
    AllocationReleasing,
    AllocationRequested,
    AllocationSpecified,
    AllocationStarting,
    AllocationStopped,
    AllocationStopping,
    LeaseEnded,
    LeaseGranted,
    PlacedSlot,
    SliceInterrupted,
    SliceReady,
    SliceStopped,
)
from events.entries import ImageContent, SkuContent, SpecifiedImage, SpecifiedSku
from events.facts import Reason
from events.nodes import NodeNetwork
from events.ssh_keys import ssh_public_key
from events.values import (
    ImageName,
    ProjectId,
    SkuName,
    allocation_of,
    ipv4_subnet,
    new_uuid,
    slot_id,
)

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
ID = allocation_of(new_uuid())
A, B = slot_id("lab-a/0"), slot_id("lab-a/1")
KEY = ssh_public_key("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJUNhMTvfjLQo4LVPLtj+JwKLEfEyHSmnjEdHhkqFqP7 test")
REASON = Reason("test_code", "reason of the test")
DERIVED = NodeNetwork("br-slice", "default", None)
PLACED = tuple(PlacedSlot(slot, network_of(slot, ipv4_subnet("10.100.1.0/24"), DERIVED)) for slot in (A, B))
NETWORK = PLACED[0].network
REQUESTED = AllocationRequested(
    ID, ProjectId("p"), SkuName("lab.small"), "public-nat", ImageName("lab-guest"), (KEY,), 3600, 2, {}
)
PLACEMENT = AllocationPlaced(ID, PLACED, NOW + timedelta(minutes=2))
PROVISIONING: tuple[AllocationFact, ...] = (REQUESTED, PLACEMENT)


def specified(sku: SkuContent = SMALL, image: ImageContent = GUEST) -> AllocationSpecified:
    """Return the specification of the allocation in these histories, with this content of its SKU and its image."""
    return AllocationSpecified(
        ID, SpecifiedSku(SkuName("lab.small"), 3, sku), SpecifiedImage(ImageName("lab-guest"), 5, image), None
    )


def with_specification(
    facts: tuple[AllocationFact, ...], sku: SkuContent = SMALL, image: ImageContent = GUEST
) -> tuple[AllocationFact, ...]:
    """Return a history with a specification recorded after its request."""
    return (facts[0], specified(sku, image), *facts[1:])


def ready(slot: str) -> SliceReady:
    return SliceReady(ID, slot_id(slot), NETWORK.private_ip, 22, "SSH-2.0-x")


GRANTED = LeaseGranted(ID, NOW, NOW + timedelta(hours=1))
ACTIVE = (*PROVISIONING, ready(A), ready(B), AllocationActivated(ID), GRANTED)
INTERRUPTED = SliceInterrupted(ID, A, REASON, NOW + timedelta(minutes=2))
SOON = NOW + timedelta(minutes=10)
STOPPING = (*ACTIVE, AllocationStopping(ID, REASON, SOON))
STOPPED = (*STOPPING, SliceStopped(ID, A, False), SliceStopped(ID, B, False), AllocationStopped(ID))
STARTING = (*STOPPED, AllocationStarting(ID, REASON, SOON))
RELEASING = (*ACTIVE, AllocationReleasing(ID, REASON), LeaseEnded(ID))
