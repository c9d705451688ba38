"""Checks of a slot's PCI functions before a virtual machine gets them, and their reset after the machine is gone.

From the start of its domain, a machine's functions can read and write its memory, and so can every function of the same
IOMMU group. So all functions of these groups are read again and checked before each start, and all problems are
reported together; then they are bound to vfio-pci. When the machine is gone, each function is reset, because the
function's next tenant could otherwise read the data of the last tenant, and is then left without a driver. No driver of
the host gets a function between a machine and the reset. A function that cannot be reset stays noted in the slot's
folder, and the slot is not used again while a function is noted.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from events.values import PciAddress
from node_agent.aspects.machine_plans import FoundDomain
from node_agent.host.host_resources import HostDevice, Place
from node_agent.host.pci import PciDevice, PciDevices, PciKind
from node_agent.host.slices import HostRefused, HostUnreadable

NO_REPRESENTOR: Final = "has no representor: its card is not in switchdev mode"
_VFIO: Final = re.compile(r"(\w+[-_])?vfio[-_]pci")
"""Pattern of the names of the drivers that give a PCI function to a machine: vfio-pci, or a vendor's variant of it
(`mlx5_vfio_pci`)."""
_BOUND_BY_AGENT: Final = "vfio-pci"
_UNFIT_KINDS: Final[dict[str, frozenset[PciKind]]] = {
    # An audio function or an NVSwitch belongs to its GPU, and a card without a host driver shows no RDMA device: so
    # kind "other" is allowed for both.
    "gpu": frozenset({"bridge", "fabric"}),
    "fabric": frozenset({"bridge", "gpu"}),
    "card": frozenset({"bridge", "fabric", "gpu", "other"}),
}


class PciBus(Protocol):
    """Interface to the PCI functions of a host: list, bind and reset them."""

    def devices(self) -> PciDevices:
        """Return all PCI functions of the host. Raises `HostUnreadable`."""
        ...

    def bars(self, addresses: Iterable[PciAddress]) -> tuple[int, ...]:
        """Return the sizes in bytes of all prefetchable 64-bit BARs of the given PCI functions; a function that does
        not exist has none. Raises `HostUnreadable`.
        """
        ...

    def bind(self, address: PciAddress) -> None:
        """Bind a PCI function without a driver to vfio-pci. Raises `HostRefused`."""
        ...

    def unbind(self, address: PciAddress) -> None:
        """Take a PCI function from vfio-pci and leave it without a driver. Raises `HostRefused`."""
        ...

    def reset(self, address: PciAddress) -> None:
        """Reset a PCI function to its power-on state by its own reset method. Raises `HostRefused`."""
        ...


def objections(
    machine: str, place: Place, devices: PciDevices, domains: Iterable[FoundDomain]
) -> tuple[str, ...]:
    """Return the reasons why a machine cannot get the PCI functions of its slot now; empty if it can."""
    domains = tuple(domains)
    return tuple(
        f"PCI device {each.address} {reason}"
        for each in place.devices
        for reason in (*_problems(each, place, devices), *_holders(each.address, machine, domains))
    )


def lost(place: Place, devices: PciDevices) -> tuple[tuple[HostDevice, str], ...]:
    """Return the slot's PCI functions that are absent or of another kind than configured, each with the reason."""
    return tuple((each, reason) for each in place.devices for reason in _mismatches(each, devices))


def device_problems(place: Place, devices: PciDevices) -> tuple[str, ...]:
    """Return the reasons why no machine can use a slot's PCI functions, regardless of which machine has them now."""
    return tuple(
        f"PCI device {each.address} {reason}"
        for each in place.devices
        for reason in _problems(each, place, devices)
    )


def numa_mismatches(place: Place, devices: PciDevices) -> tuple[str, ...]:
    """Describe the slot's PCI functions on another NUMA node than its memory. Such functions work, but more slowly."""
    found = (devices.find(each.address) for each in place.devices)
    return tuple(
        f"PCI device {device.address} is on NUMA node {device.numa_node}, "
        f"but the slot's memory is on NUMA node {place.nodeset}"
        for device in found
        if device is not None and device.numa_node is not None and place.nodeset is not None
        if str(device.numa_node) != place.nodeset
    )


def devices_in_use(
    place: Place, devices: PciDevices, domains: Iterable[FoundDomain], machine: str
) -> tuple[str, ...]:
    """Describe which of the slot's PCI functions are in use by a host driver or by the domain of another machine."""
    domains = tuple(domains)
    return tuple(
        f"PCI device {each.address} {reason}"
        for each in place.devices
        for reason in (
            *_driver_problems(devices.find(each.address)),
            *_holders(each.address, machine, domains),
        )
    )


def bind(place: Place, bus: PciBus) -> None:
    """Bind the slot's PCI functions that have no driver to vfio-pci. Raises `HostRefused`, and `HostUnreadable` if the
    PCI bus cannot be read.
    """
    devices = bus.devices()
    for address in place.addresses:
        device = devices.find(address)
        if device is not None and device.driver is None:
            bus.bind(address)


def reset(address: PciAddress, bus: PciBus, domains: Iterable[FoundDomain]) -> None:
    """Reset a PCI function, and take it from vfio-pci. An absent function needs no reset: it lost power or its card
    removed it, and it is in the reset state when it returns.

    Raises `HostRefused` if the function is in use or cannot be reset, and `HostUnreadable` if the PCI bus cannot be
    read.
    """
    device = bus.devices().find(address)
    if device is None:
        return
    reasons = [*_driver_problems(device), *_holders(address, None, domains)]
    if not device.reset_methods and device.unread is None:
        reasons.append("has no reset method")
    if reasons:
        raise HostRefused(f"PCI device {address} cannot be reset: it {', and '.join(reasons)}")
    bus.reset(address)
    if device.driver == _BOUND_BY_AGENT:
        bus.unbind(address)


def _problems(wanted: HostDevice, place: Place, devices: PciDevices) -> Iterator[str]:
    device = devices.find(wanted.address)
    yield from _mismatches(wanted, devices)
    if device is None or device.unread is not None:
        return
    if device.iommu_group is None:
        yield "is in no IOMMU group: the host has no IOMMU, or does not use it"
    others = [
        f"{each.address} ({each.number})"
        for each in devices.group_of(device)
        if each.address not in place.addresses and each.kind != "bridge"
    ]
    if others:
        foreign = ", ".join(others)
        yield f"shares IOMMU group {device.iommu_group} with {foreign}, which do not belong to the slot"
    yield from _driver_problems(device)


def _mismatches(wanted: HostDevice, devices: PciDevices) -> Iterator[str]:
    found = devices.find(wanted.address)
    if found is None:
        yield "does not exist"
    elif found.unread is not None:
        yield _cannot_be_read(found.unread)
    elif found.kind in _UNFIT_KINDS.get(wanted.use, ()):
        expected = "virtual function" if wanted.use == "card" else wanted.use
        yield f"is not a {expected}, but a {found.kind} ({found.number})"
    elif wanted.use == "card":
        yield from _without_representor(wanted.address, devices)


def _without_representor(vf: PciAddress, devices: PciDevices) -> Iterator[str]:
    try:
        number = devices.behind(vf)
    except HostUnreadable as error:
        # Only the functions of this card are unreadable, and not the whole node.
        yield _cannot_be_read(str(error))
        return
    if number is None:
        yield NO_REPRESENTOR


def _driver_problems(device: PciDevice | None) -> Iterator[str]:
    if device is not None and device.unread is not None:
        yield _cannot_be_read(device.unread)
    elif device is not None and device.driver is not None and not _VFIO.fullmatch(device.driver):
        yield f"is bound to {device.driver}"


def _cannot_be_read(reason: str) -> str:
    return f"cannot be read: {reason}"


def _holders(address: PciAddress, machine: str | None, domains: Iterable[FoundDomain]) -> Iterator[str]:
    for domain in domains:
        if address in domain.devices and domain.name != machine:
            yield f"is held by domain {domain.name} ({domain.state})"
