"""Slots of the nodes of the demo fleet, with the GPUs that a simulated host has for them."""

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from deploy.demo.plan import DemoNode
from events.values import SlotIndex
from node_agent.aspects.devices import describe_devices_of, read_health_of
from node_agent.lab.simulated.host import SimulatedHost
from node_agent.lab.simulated.pci import SimulatedPci, add_pci_devices
from node_agent.settings import SlotSettings
from tasks.devices import DeviceReading, FoundDevice


class SlotDevices(NamedTuple):
    """What a node reports about the PCI functions of a slot: in its description, and after the removal of a slice."""

    found: tuple[FoundDevice, ...]
    readings: tuple[DeviceReading, ...]


def slots_of(node: DemoNode) -> tuple[SlotSettings, ...]:
    """Return the settings of the slots of a node. A slot with GPUs is on the NUMA node of its number."""
    return tuple(
        SlotSettings(
            index=SlotIndex(index),
            vcpus=node.size.vcpus,
            memory_mib=node.size.memory_mib,
            gpus=node.gpus[index] if node.gpus else (),
            numa_node=index if node.gpus else None,
        )
        for index in range(node.slots)
    )


@cache
def devices_of(node: DemoNode) -> Mapping[SlotIndex, SlotDevices]:
    """Return what a simulated node reports about the devices of each slot, so that its agent reports the same later."""
    host, places = SimulatedHost(), {each.index: each.place for each in slots_of(node)}
    add_pci_devices(host, places.values())
    bus = SimulatedPci(host)
    described, read = describe_devices_of(places, bus)(bus.devices()), read_health_of(places, bus, bus)
    return {
        index: SlotDevices(
            tuple(described[each.use, each.address] for each in place.devices if each.use != "unordered"),
            read(index),
        )
        for index, place in places.items()
    }
