"""Commands of the dispatch benchmark: each places an allocation, from which the dispatcher derives one order."""

from datetime import UTC, datetime, timedelta
from typing import Final

from control_plane.handle import Command, Decision, Transaction
from control_plane.origin import Origin
from events.allocations import AllocationPlaced, AllocationRequested, PlacedSlot
from events.envelope import Cause
from events.ledger import append
from events.slots import SlotClaimed, SlotNetwork
from events.values import (
    AllocationId,
    NodeId,
    SlotId,
    SlotIndex,
    SshPublicKey,
    StreamId,
    correlation_of,
    image_name,
    ipv4_address,
    ipv4_subnet,
    mac_address,
    project_id,
    sku_name,
    slot_of,
    stream_of_allocation,
)

_KEY: Final = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHcl9zYpCQlBTb2vG1mW0K7f2LJkYH4wqQ2s5oE3c1aV bench"
_DEADLINE: Final = timedelta(hours=1)
_NETWORK: Final = SlotNetwork(
    l2_domain="default",
    mac_address=mac_address("52:54:00:10:00:01"),
    private_ip=ipv4_address("10.100.1.10"),
    subnet=ipv4_subnet("10.100.1.0/24"),
    gateway=ipv4_address("10.100.1.1"),
    bridge="br-slice",
)


def place(allocation: AllocationId, node: NodeId) -> Command:
    """Return a command that places an allocation on the node's first slot.

    The command does not claim the slot, so later placements can use the slot too; each supersedes the previous order.
    """

    async def command(transaction: Transaction) -> Decision:
        change = _change(allocation, slot_of(node, SlotIndex(0)), transaction.now)
        return Decision((change,), _cause(allocation, transaction.now))

    return command


def placement(allocation: AllocationId, slot: SlotId) -> append.LedgerCommand:
    """Return a ledger command that places an allocation on a slot without events and claims the slot."""
    now = datetime.now(UTC)
    claimed = append.Change(StreamId(f"slot-{slot}"), 0, (SlotClaimed(slot, allocation),))
    return append.LedgerCommand((_change(allocation, slot, now), claimed), _cause(allocation, now))


def _cause(allocation: AllocationId, now: datetime) -> Cause:
    return Origin(actor="key:bench", reason="bench", correlation_id=correlation_of(allocation)).at(now)


def _change(allocation: AllocationId, slot: SlotId, now: datetime) -> append.Change:
    requested = AllocationRequested(
        allocation_id=allocation,
        project=project_id("default"),
        sku=sku_name("lab.small"),
        network_mode="private-nat",
        image=image_name("lab-guest"),
        ssh_authorized_keys=(SshPublicKey(_KEY),),
        lease_seconds=3600,
        slot_count=1,
        labels={},
    )
    placed = AllocationPlaced(
        allocation_id=allocation, slots=(PlacedSlot(slot, _NETWORK),), deadline=now + _DEADLINE
    )
    return append.Change(stream_of_allocation(allocation), 0, (requested, placed))
