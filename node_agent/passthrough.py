"""What a slot's PCI functions must be before a machine gets them, and after it is gone.

A function is the machine's from the moment its domain starts: its memory is the function's to read and write, and with
it all that shares the IOMMU group. So all of it is looked at before each start, by a fresh look, and every objection is
told at once. After the machine, each function is reset, or its next tenant would find the last one's words in it; one
that cannot be stays noted in the slot's folder, which keeps the slot out.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from events.values import PciAddress
from node_agent.machine_plans import FoundDomain
from node_agent.pci import PciDevice, PciDevices, PciKind
from node_agent.places import HostDevice, Place
from node_agent.slices import HostRefused, HostUnreadable

NO_REPRESENTOR: Final = "has no representor: its card is not in switchdev mode"
_VFIO: Final = re.compile(r"(\w+[-_])?vfio[-_]pci")
"""vfio-pci, or a variant of it for one maker's functions (`mlx5_vfio_pci`)."""
_NOT_FOR: Final[dict[str, frozenset[PciKind]]] = {
    # An audio function or an NVSwitch goes with its GPU; a card that is kept for guests shows no RDMA device here.
    "gpu": frozenset({"bridge", "fabric"}),
    "fabric": frozenset({"bridge", "gpu"}),
    "card": frozenset({"bridge", "fabric", "gpu", "other"}),
}


class PciBus(Protocol):
    """The host's PCI functions."""

    def devices(self) -> PciDevices:
        """Raises `HostUnreadable`."""
        ...

    def reset(self, address: PciAddress) -> None:
        """As after power came on, by the function's own means. Raises `HostRefused`."""
        ...


def objections(
    machine: str, place: Place, devices: PciDevices, domains: Iterable[FoundDomain]
) -> tuple[str, ...]:
    """Why the machine of that name cannot have them now; empty: it can."""
    domains = tuple(domains)
    return tuple(
        f"PCI device {each.address} {why}"
        for each in place.devices
        for why in (*_unfit(each, place, devices), *_held(each.address, machine, domains))
    )


def lost(place: Place, devices: PciDevices) -> tuple[tuple[HostDevice, str], ...]:
    """Functions that are not there, or are something else, and in which way."""
    return tuple((each, why) for each in place.devices for why in _another(each, devices))


def unfit(place: Place, devices: PciDevices) -> tuple[str, ...]:
    """Why no machine can have them, whoever has them now."""
    return tuple(
        f"PCI device {each.address} {why}" for each in place.devices for why in _unfit(each, place, devices)
    )


def far_from(place: Place, devices: PciDevices) -> tuple[str, ...]:
    """Functions on another NUMA node than the slot's memory: they work, and slower."""
    found = (devices.find(each.address) for each in place.devices)
    return tuple(
        f"PCI device {device.address} is on NUMA node {device.numa_node}, and the slot on {place.nodeset}"
        for device in found
        if device is not None and device.numa_node is not None and place.nodeset is not None
        if str(device.numa_node) != place.nodeset
    )


def not_let_go(
    place: Place, devices: PciDevices, domains: Iterable[FoundDomain], machine: str
) -> tuple[str, ...]:
    """What of the slot's functions is in somebody's hands; the slot's own domain is told as a domain."""
    domains = tuple(domains)
    return tuple(
        f"PCI device {each.address} {why}"
        for each in place.devices
        for why in (*_bound(devices.find(each.address)), *_held(each.address, machine, domains))
    )


def reset(address: PciAddress, bus: PciBus, domains: Iterable[FoundDomain]) -> None:
    """One that is not there any more lost its power, or its card made it anew.

    Raises `HostRefused`, `HostUnreadable`.
    """
    device = bus.devices().find(address)
    if device is None:
        return
    reasons = [*_bound(device), *_held(address, None, domains)]
    if not device.reset_methods and device.unread is None:
        reasons.append("offers no way to be reset")
    if reasons:
        raise HostRefused(f"reset PCI device {address}: it {', and '.join(reasons)}")
    bus.reset(address)


def _unfit(wanted: HostDevice, place: Place, devices: PciDevices) -> Iterator[str]:
    device = devices.find(wanted.address)
    yield from _another(wanted, devices)
    if device is None or device.unread is not None:
        return
    if device.iommu_group is None:
        yield "is in no IOMMU group: the host has no IOMMU, or does not use it"
    strangers = [
        f"{each.address} ({each.number})"
        for each in devices.group_of(device)
        if each.address not in place.addresses and each.kind != "bridge"
    ]
    if strangers:
        yield f"shares IOMMU group {device.iommu_group} with {', '.join(strangers)}, not of this slot"
    yield from _bound(device)


def _another(wanted: HostDevice, devices: PciDevices) -> Iterator[str]:
    found = devices.find(wanted.address)
    if found is None:
        yield "is not there"
    elif found.unread is not None:
        yield _cannot_be_read(found.unread)
    elif found.kind in _NOT_FOR.get(wanted.use, ()):
        words = "virtual function" if wanted.use == "card" else wanted.use
        yield f"is no {words}, but a {found.kind} ({found.number})"
    elif wanted.use == "card":
        yield from _without_representor(wanted.address, devices)


def _without_representor(vf: PciAddress, devices: PciDevices) -> Iterator[str]:
    try:
        number = devices.behind(vf)
    except HostUnreadable as error:
        # The card's, and so each of its functions': no more of the node is unreadable for it.
        yield _cannot_be_read(str(error))
        return
    if number is None:
        yield NO_REPRESENTOR


def _bound(device: PciDevice | None) -> Iterator[str]:
    if device is not None and device.unread is not None:
        yield _cannot_be_read(device.unread)
    elif device is not None and device.driver is not None and not _VFIO.fullmatch(device.driver):
        yield f"is bound to {device.driver}"


def _cannot_be_read(why: str) -> str:
    return f"cannot be read: {why}"


def _held(address: PciAddress, machine: str | None, domains: Iterable[FoundDomain]) -> Iterator[str]:
    for domain in domains:
        if address in domain.devices and domain.name != machine:
            yield f"is held by domain {domain.name} ({domain.state})"
