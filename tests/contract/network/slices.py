"""Desired states of the network tests' slices, as orders describe them, for the slots of one node."""

from uuid import UUID

from events.values import (
    Ipv4Address,
    Ipv4Subnet,
    MacAddress,
    SlotIndex,
    allocation_of,
    image_name,
    ingress_of,
)
from node_agent.aspects.gateway import NodeNetwork
from node_agent.host.slices import Slice, SliceNetwork, Step, tap_of
from tasks.orders import AddressMapping, Machine, Mapping, PortMapping

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJUNhMTvfjLQo4LVPLtj+JwKLEfEyHSmnjEdHhkqFqP7 test"
SUBNET = Ipv4Subnet("10.100.1.0/24")
GATEWAY = Ipv4Address("10.100.1.1")
NETWORK = NodeNetwork("br-slice", SUBNET, GATEWAY, uplink="uplink0", datapath_type="netdev")


def network(index: int, rate_mbit: int | None = None) -> SliceNetwork:
    return SliceNetwork(
        index=SlotIndex(index),
        tap=tap_of(SlotIndex(index)),
        bridge=NETWORK.bridge,
        mac=MacAddress(f"52:54:00:01:00:{index:02x}"),
        ip=Ipv4Address(f"10.100.1.{10 + index}"),
        subnet=SUBNET,
        gateway=GATEWAY,
        rate_mbit=rate_mbit,
    )


def slice_on(slot: SliceNetwork, *ingress: Mapping) -> Slice:
    machine = Machine(
        vcpus=1, memory_mib=96, image=image_name("lab"), hostname="guest", ssh_authorized_keys=(KEY,)
    )
    return Slice(allocation_of(UUID("0190f7a0-0000-7000-8000-000000000000")), slot, machine, ingress)


def port_mapping(number: int, public: str, public_port: int, port: int = 22, *sources: str) -> PortMapping:
    """Return an ingress rule for one TCP port of a public address. Its id is derived from `number`."""
    return PortMapping(
        ingress_id=ingress_of(UUID(int=number)),
        public_address=Ipv4Address(public),
        protocol="tcp",
        public_port=public_port,
        port=port,
        sources=tuple(map(Ipv4Subnet, sources)),
    )


def address_mapping(number: int, public: str, *sources: str) -> AddressMapping:
    return AddressMapping(
        ingress_id=ingress_of(UUID(int=number)),
        public_address=Ipv4Address(public),
        sources=tuple(map(Ipv4Subnet, sources)),
    )


def names(steps: tuple[Step, ...]) -> list[str]:
    return [step.name for step in steps]


def run(steps: tuple[Step, ...]) -> list[str]:
    for step in steps:
        step.run()
    return names(steps)
