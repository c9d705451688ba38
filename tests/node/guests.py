"""Desired states of slices, as orders describe them, equal except for the values that a test varies."""

from typing import Final

from events.values import (
    AllocationId,
    ImageName,
    Ipv4Address,
    Ipv4Subnet,
    MacAddress,
    SlotIndex,
    SshPublicKey,
    allocation_id,
)
from node_agent.host.slices import Slice, SliceNetwork, tap_of
from tasks.orders import Machine

FIRST: Final = allocation_id("alc-01jd0000000000000000000001")
SECOND: Final = allocation_id("alc-01jd0000000000000000000002")
IMAGE: Final = ImageName("lab-guest")
KEY: Final = SshPublicKey(
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDKsuaAQeJS1YEHu4JbD12QFmMxoljrhK2rxxnRyUc3O user"
)


def slice_on(
    index: int,
    allocation: AllocationId = FIRST,
    *,
    memory_mib: int = 96,
    vcpus: int = 1,
    image: ImageName = IMAGE,
    hostname: str = "web-1",
) -> Slice:
    machine = Machine(
        vcpus=vcpus, memory_mib=memory_mib, image=image, hostname=hostname, ssh_authorized_keys=(KEY,)
    )
    return Slice(allocation, network_on(index), machine)


def network_on(index: int) -> SliceNetwork:
    return SliceNetwork(
        index=SlotIndex(index),
        tap=tap_of(SlotIndex(index)),
        bridge="br-slice",
        mac=MacAddress(f"52:54:00:00:00:{index + 1:02x}"),
        ip=Ipv4Address(f"10.100.1.{index + 10}"),
        subnet=Ipv4Subnet("10.100.1.0/24"),
        gateway=Ipv4Address("10.100.1.1"),
    )
