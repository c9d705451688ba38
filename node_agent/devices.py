"""Devices that a host is to have beside its uplink, when its settings name them (NOD-6, TSK-2).

A virtual function belongs to a physical one, and a BlueField's host side talks to the card over the link `tmfifo_net0`;
both are links of the host. Slots may have PCI devices for their machines. Where no such device is configured, none is
wanted.
"""

from collections.abc import Callable
from typing import Final

from events.values import SlotIndex
from node_agent.host import Prerequisite
from node_agent.links import Links
from node_agent.passthrough import PciBus, far_from, lost, unfit
from node_agent.pci import PciDevices
from node_agent.places import Places
from node_agent.settings import Settings
from node_agent.slices import Difference, HostUnreadable

NOT_CONFIGURED: Final = "not configured"


def devices_of(settings: Settings, links: Links, bus: PciBus) -> Callable[[], tuple[Prerequisite, ...]]:
    """What to ask for the state of the devices; it raises nothing."""
    wanted, places = (("vf", settings.vf_parent), ("bf3", settings.bf3_link)), settings.places
    return lambda: (*(_device(name, link, links) for name, link in wanted), _pci(places, bus))


def absent_devices_of(settings: Settings, links: Links) -> Callable[[], tuple[Difference, ...]]:
    """What to ask for the devices that are not there. It raises `HostUnreadable`."""
    wanted = [link for link in (settings.vf_parent, settings.bf3_link) if link is not None]

    def absent() -> tuple[Difference, ...]:
        gone = (link for link in wanted if links.link(link) is None)
        return tuple(Difference("device.absent", f"link {link}", "no such link") for link in gone)

    return absent


def pci_devices_of(places: Places, bus: PciBus) -> Callable[[], PciDevices]:
    """What to ask for the host's PCI functions; where no slot has any, nobody looks. It raises `HostUnreadable`."""
    wanted = any(place.devices for place in places.values())
    return lambda: bus.devices() if wanted else PciDevices(())


def lost_devices(places: Places, devices: PciDevices) -> dict[SlotIndex, tuple[Difference, ...]]:
    """What slots lack of the functions that the settings give them."""
    return {
        slot: tuple(
            Difference("slot.device", f"{each.use} at {each.address}", f"PCI device {each.address} {why}")
            for each, why in lost(place, devices)
        )
        for slot, place in places.items()
        if place.devices
    }


def _pci(places: Places, bus: PciBus) -> Prerequisite:
    """Whether each slot's machine could have its devices; one on another NUMA node is told, and is no fault."""
    wanted = [place for place in places.values() if place.devices]
    if not wanted:
        return Prerequisite("pci", ok=True, detail=NOT_CONFIGURED)
    try:
        devices = bus.devices()
    except HostUnreadable as error:
        return Prerequisite("pci", ok=False, detail=str(error))
    against = [words for place in wanted for words in unfit(place, devices)]
    far = [words for place in wanted for words in far_from(place, devices)]
    given = f"{sum(len(place.devices) for place in wanted)} given to slots"
    return Prerequisite("pci", ok=not against, detail="; ".join((given, *against, *far)))


def _device(name: str, link: str | None, links: Links) -> Prerequisite:
    if link is None:
        return Prerequisite(name, ok=True, detail=NOT_CONFIGURED)
    try:
        return Prerequisite(name, ok=links.link(link) is not None, detail=f"link {link}")
    except HostUnreadable as error:
        return Prerequisite(name, ok=False, detail=f"link {link}: {error}")
