"""Host resources of a machine (devices, CPUs, memory) in libvirt's domain XML (libvirt.org/formatdomain.html).

The alias of a passed-through PCI function encodes its use: libvirt keeps aliases that begin with `ua-`. libvirt adds a
root port for each function itself, as for every PCI Express device of a q35 machine.
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from typing import Final, Literal

from events.values import MacAddress, PciAddress, pci_address
from node_agent.drivers.machines.elements import element
from node_agent.host.host_resources import HostDevice, Place, Use

_PASSED: Final[tuple[Use, ...]] = ("gpu", "fabric")
"""Uses of PCI functions that become `hostdev` elements. A function with the use `card` becomes an `interface` element,
because libvirt then sets its MAC address."""
_ALIAS: Final = re.compile(r"ua-(?P<use>gpu|fabric)\d+")
_EMULATED_WINDOW: Final = 32 * 1024**3
"""Guest address space in bytes that QEMU reserves by default for 64-bit BARs (`pci-hole64-size` of q35). It is kept for
the emulated devices."""


def tuning(place: Place, accelerator: Literal["qemu", "kvm"]) -> tuple[ET.Element, ...]:
    """Return the XML elements that bind a machine to processors and memory of its host."""
    return (*_memory(place), *_processors(place), *_physical_addresses(place, accelerator))


def cpuset(place: Place) -> dict[str, str]:
    """Return the attributes of `<vcpu>` that restrict all threads of QEMU to the machine's CPUs, not only the vCPUs."""
    return {"cpuset": ",".join(place.pins)} if place.pins else {}


def devices(place: Place, bars: Sequence[int]) -> tuple[ET.Element, ...]:
    """Return one XML element per passed-through PCI function, and one element that reserves guest address space for
    their prefetchable 64-bit BARs, which have the sizes `bars`, in bytes.
    """
    passed = (
        _hostdev(use, number, address) for use in _PASSED for number, address in enumerate(place.of(use))
    )
    return (*_window(bars), *passed)


def vf_interface(vf: PciAddress, mac: MacAddress) -> ET.Element:
    """Return the XML of a PCI virtual function as network card; libvirt sets its MAC before the guest starts."""
    return element(
        "interface", element("mac", address=mac), _source(vf, type="pci"), type="hostdev", managed="no"
    )


def place_in(domain: ET.Element) -> Place:
    """Return the host resources of a domain. Raises `ValueError` if its XML holds an invalid value."""
    node = domain.find("numatune/memory")
    page = domain.find("memoryBacking/hugepages/page")
    driver = domain.find("devices/interface/driver")
    cards = _addresses(domain, "devices/interface[@type='hostdev']")
    return Place(
        devices=(*_host_devices(domain), *(HostDevice(card, "card") for card in cards)),
        pins=tuple(pin.get("cpuset", "") for pin in _by_vcpu(domain)),
        nodeset=node.get("nodeset") if node is not None else None,
        # libvirt returns sizes in KiB, whatever unit they were given in.
        hugepage_kib=int(page.get("size", "")) if page is not None else None,
        queues=int(driver.get("queues", "1")) if driver is not None else 1,
    )


def devices_in(domain: ET.Element) -> tuple[PciAddress, ...]:
    """Return every PCI function of the host in a domain's XML, including functions that are attached as disks. A domain
    that is switched off gets the functions when it starts.
    """
    return tuple(_addresses(domain, "devices/*"))


def _memory(place: Place) -> Iterator[ET.Element]:
    if place.hugepage_kib is not None:
        page = element("page", size=str(place.hugepage_kib), unit="KiB")
        yield element("memoryBacking", element("hugepages", page))
    if place.nodeset is not None:
        # With mode strict, a guest that would get memory of another NUMA node does not start instead of being slow.
        yield element("numatune", element("memory", mode="strict", nodeset=place.nodeset))


def _processors(place: Place) -> Iterator[ET.Element]:
    if place.pins:
        pins = (element("vcpupin", vcpu=str(vcpu), cpuset=cpu) for vcpu, cpu in enumerate(place.pins))
        yield element("cputune", *pins)


def _physical_addresses(place: Place, accelerator: str) -> Iterator[ET.Element]:
    # Firmware places large BARs only where the guest's processor can address them; QEMU's own model has only 40 bits.
    if place.of("gpu") and accelerator == "kvm":
        yield element("cpu", element("maxphysaddr", mode="passthrough"), mode="host-passthrough")


def _window(bars: Sequence[int]) -> Iterator[ET.Element]:
    if bars:
        # A BAR starts at a multiple of its size, and each size is a power of two. So if the BARs are placed in the
        # order of their sizes, only the space before the largest one is lost.
        size = _EMULATED_WINDOW + sum(bars) + max(bars)
        hole = element("pcihole64", str(size // 1024), unit="KiB")
        yield element("controller", hole, type="pci", index="0", model="pcie-root")


def _hostdev(use: Use, number: int, address: PciAddress) -> ET.Element:
    # With managed='yes', libvirt would give the function to any driver of the host that accepts it, as soon as the
    # machine ends and before the function is reset. So the agent binds it itself (`PciBus.bind`).
    return element(
        "hostdev",
        _source(address),
        element("alias", name=f"ua-{use}{number}"),
        mode="subsystem",
        type="pci",
        managed="no",
    )


def _source(address: PciAddress, **more: str) -> ET.Element:
    domain, bus, rest = address.split(":")
    slot, function = rest.split(".")
    parts = {"domain": domain, "bus": bus, "slot": slot, "function": function}
    numbers = {name: f"0x{digits}" for name, digits in parts.items()}
    return element("source", element("address", **more, **numbers))


def _host_devices(domain: ET.Element) -> Iterator[HostDevice]:
    for hostdev in domain.iterfind("devices/hostdev[@type='pci']"):
        alias = hostdev.find("alias")
        match = _ALIAS.fullmatch(alias.get("name", "")) if alias is not None else None
        use: Use | Literal["unordered"] = "unordered"
        if match is not None:
            use = "gpu" if match["use"] == "gpu" else "fabric"
        for address in _addresses(hostdev, "."):
            yield HostDevice(address, use)


def _addresses(element: ET.Element, path: str) -> Iterator[PciAddress]:
    for address in element.iterfind(f"{path}/source/address"):
        # The address of a USB device has a bus but no slot.
        if address.get("slot") is not None:
            domain, bus, slot, function = (
                int(address.get(name, "0"), 16) for name in ("domain", "bus", "slot", "function")
            )
            yield pci_address(f"{domain:04x}:{bus:02x}:{slot:02x}.{function:x}")


def _by_vcpu(domain: ET.Element) -> list[ET.Element]:
    return sorted(domain.iterfind("cputune/vcpupin"), key=lambda pin: int(pin.get("vcpu", "")))
