"""State of the network links and PCI devices in a node's settings, except the uplink (NOD-6, TSK-2).

The links are the parent of the virtual functions and the link to a BlueField card (`tmfifo_net0`). The PCI devices
belong to the slots' virtual machines. A device that is not configured is not required.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from events.values import PciAddress, SlotIndex
from node_agent.aspects.links import Links
from node_agent.aspects.passthrough import PciBus, device_problems, lost, numa_mismatches
from node_agent.host.device_facts import FactsUnread, Files, describe_device
from node_agent.host.device_health import reading_of
from node_agent.host.host import Prerequisite
from node_agent.host.host_resources import ANYWHERE, Places, Use
from node_agent.host.pci import PciDevices
from node_agent.host.slices import Difference, HostUnreadable
from node_agent.settings import Settings
from tasks.devices import DeviceReading, FoundDevice

NOT_CONFIGURATION: Final = "not configured"


class DeviceFiles(Protocol):
    """Interface to the files in which a host describes its PCI functions."""

    def read(self, addresses: Iterable[PciAddress]) -> Mapping[PciAddress, Files | FactsUnread]:
        """Return the files that describe each PCI function in `addresses`: those of the function itself, and those of
        its physical function about RDMA and network links.
        """
        ...

    def read_health(self, addresses: Iterable[PciAddress]) -> Mapping[PciAddress, Files | FactsUnread]:
        """Return, for each PCI function in `addresses`, the files that describe its health."""
        ...


def devices_of(settings: Settings, links: Links, bus: PciBus) -> Callable[[], tuple[Prerequisite, ...]]:
    """Return a function that checks the devices in the node's settings. It raises no exception: a device that cannot be
    read is a failed check.
    """
    desired, places = (("vf", settings.vf_parent), ("bf3", settings.bf3_link)), settings.places
    return lambda: (*(_link_prerequisite(name, link, links) for name, link in desired), _pci(places, bus))


def absent_devices_of(settings: Settings, links: Links) -> Callable[[], tuple[Difference, ...]]:
    """Return a function that reports which links in the node's settings do not exist, and raises `HostUnreadable`."""
    desired = [link for link in (settings.vf_parent, settings.bf3_link) if link is not None]

    def absent() -> tuple[Difference, ...]:
        missing = (link for link in desired if links.link(link) is None)
        return tuple(Difference("device.absent", f"link {link}", "no such link") for link in missing)

    return absent


def pci_devices_of(places: Places, bus: PciBus) -> Callable[[], PciDevices]:
    """Return a function that lists the host's PCI functions, and raises `HostUnreadable`.

    If no slot has a PCI device, the host is not read and the list is empty.
    """
    desired = any(place.devices for place in places.values())
    return lambda: bus.devices() if desired else PciDevices(())


def describe_devices_of(
    places: Places, files: DeviceFiles
) -> Callable[[PciDevices], Mapping[tuple[Use, PciAddress], FoundDevice]]:
    """Return a function that describes each PCI function in the slots' settings by use and address, also if it does not
    exist.
    """
    desired = [
        (each.use, each.address)
        for place in places.values()
        for each in place.devices
        if each.use != "unordered"
    ]

    def describe(devices: PciDevices) -> Mapping[tuple[Use, PciAddress], FoundDevice]:
        found = (devices.find(address) for _, address in desired)
        read = files.read([each.address for each in found if each is not None and each.unread is None])
        return {
            (use, address): describe_device(use, address, devices, read.get(address, {}))
            for use, address in desired
        }

    return describe


def read_health_of(
    places: Places, bus: PciBus, files: DeviceFiles
) -> Callable[[SlotIndex], tuple[DeviceReading, ...]]:
    """Return a function that reads the health of the PCI functions of a slot. It raises no exception: for a PCI
    function that cannot be read, the reading contains the reason.
    """

    def read(slot: SlotIndex) -> tuple[DeviceReading, ...]:
        addresses = [each.address for each in places.get(slot, ANYWHERE).devices]
        if not addresses:
            return ()
        try:
            present = [each for each in addresses if bus.devices().find(each) is not None]
        except HostUnreadable as error:
            return tuple(reading_of(each, FactsUnread(str(error))) for each in addresses)
        found, absent = files.read_health(present), FactsUnread("there is no PCI function at this address")
        return tuple(reading_of(each, found.get(each, absent)) for each in addresses)

    return read


def lost_devices(places: Places, devices: PciDevices) -> dict[SlotIndex, tuple[Difference, ...]]:
    """Return, for each slot with PCI devices in its settings, the devices that are missing or cannot be used."""
    return {
        slot: tuple(
            Difference("slot.device", f"{each.use} at {each.address}", f"PCI device {each.address} {reason}")
            for each, reason in lost(place, devices)
        )
        for slot, place in places.items()
        if place.devices
    }


def _pci(places: Places, bus: PciBus) -> Prerequisite:
    """Return the prerequisite `pci`, which is met if every slot's machine can use its PCI devices.

    A device on another NUMA node than its slot is named in the detail of the prerequisite, but is not a failure.
    """
    desired = [place for place in places.values() if place.devices]
    if not desired:
        return Prerequisite("pci", ok=True, detail=NOT_CONFIGURATION)
    try:
        devices = bus.devices()
    except HostUnreadable as error:
        return Prerequisite("pci", ok=False, detail=str(error))
    faults = [text for place in desired for text in device_problems(place, devices)]
    remote = [text for place in desired for text in numa_mismatches(place, devices)]
    assigned = f"PCI devices of slots: {sum(len(place.devices) for place in desired)}"
    return Prerequisite("pci", ok=not faults, detail="; ".join((assigned, *faults, *remote)))


def _link_prerequisite(name: str, link: str | None, links: Links) -> Prerequisite:
    if link is None:
        return Prerequisite(name, ok=True, detail=NOT_CONFIGURATION)
    try:
        return Prerequisite(name, ok=links.link(link) is not None, detail=f"link {link}")
    except HostUnreadable as error:
        return Prerequisite(name, ok=False, detail=f"link {link}: {error}")
