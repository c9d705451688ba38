"""Slices as orders want them, for the slots of one node."""

from uuid import UUID

from events.values import (
    Ipv4Address,
    Ipv4Subnet,
    MacAddress,
    SlotIndex,
    allocation_of,
    image_name,
)
from node_agent.gateway import NodeNetwork
from node_agent.slices import Slice, SliceNetwork, Step, tap_of
from tasks.orders import Machine

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJUNhMTvfjLQo4LVPLtj+JwKLEfEyHSmnjEdHhkqFqP7 test"
SUBNET = Ipv4Subnet("10.100.1.0/24")
GATEWAY = Ipv4Address("10.100.1.1")
NETWORK = NodeNetwork("br-slice", SUBNET, GATEWAY, uplink="uplink0", datapath_type="netdev")


def network(index: int) -> SliceNetwork:
    return SliceNetwork(
        index=SlotIndex(index),
        tap=tap_of(SlotIndex(index)),
        bridge=NETWORK.bridge,
        mac=MacAddress(f"52:54:00:01:00:{index:02x}"),
        ip=Ipv4Address(f"10.100.1.{10 + index}"),
        subnet=SUBNET,
        gateway=GATEWAY,
    )


def slice_on(slot: SliceNetwork) -> Slice:
    machine = Machine(
        vcpus=1, memory_mib=96, image=image_name("lab"), hostname="guest", ssh_authorized_keys=(KEY,)
    )
    return Slice(allocation_of(UUID("0190f7a0-0000-7000-8000-000000000000")), slot, machine)


def names(steps: tuple[Step, ...]) -> list[str]:
    return [step.name for step in steps]


def run(steps: tuple[Step, ...]) -> list[str]:
    for step in steps:
        step.run()
    return names(steps)
