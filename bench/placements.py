"""What the dispatch bench records: an allocation that is placed, from which the dispatcher derives one order."""

from datetime import timedelta
from typing import Final

from control_plane.handle import Command, Decision, Transaction
from control_plane.origin import Origin
from events.allocations import AllocationPlaced, AllocationRequested, PlacedSlot
from events.append import Change
from events.slots import SlotNetwork
from events.values import (
    AllocationId,
    NodeId,
    SlotIndex,
    SshPublicKey,
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
    """Place an allocation on the node's first slot.

    The slot is not claimed, so that one placement after another goes there; each supersedes the order before.
    """

    async def command(transaction: Transaction) -> Decision:
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
        slot = PlacedSlot(slot_of(node, SlotIndex(0)), _NETWORK)
        placed = AllocationPlaced(
            allocation_id=allocation, slots=(slot,), deadline=transaction.now + _DEADLINE
        )
        origin = Origin(actor="key:bench", why="bench", correlation_id=correlation_of(allocation))
        change = Change(stream_of_allocation(allocation), 0, (requested, placed))
        return Decision((change,), origin.at(transaction.now))

    return command
