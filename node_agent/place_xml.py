"""What a machine has of its host for itself, in a libvirt domain (libvirt.org/formatdomain.html).

A function's alias says what it is for: libvirt keeps those that begin with `ua-`. A root port for each function is
libvirt's to add, as it does for every PCI Express device of a q35 machine.
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Final, Literal

from events.values import MacAddress, PciAddress, pci_address
from node_agent.elements import element
from node_agent.places import HostDevice, Place, Use

_PASSED: Final[tuple[Use, ...]] = ("gpu", "fabric")
"""As functions alone: a card is an interface, since libvirt sets its MAC."""
_ALIAS: Final = re.compile(r"ua-(?P<use>gpu|fabric)\d+")
_GPU_WINDOW_KIB: Final = 256 * 1024 * 1024
"""The largest BAR of a GPU, 256 GiB. What is reserved is address space, and no memory."""


def tuning(place: Place, accelerator: Literal["qemu", "kvm"]) -> tuple[ET.Element, ...]:
    """How the machine lies on its host's processors and memory."""
    return (*_memory(place), *_processors(place), *_physical_addresses(place, accelerator))


def cpuset(place: Place) -> dict[str, str]:
    """For `<vcpu>`: where the threads of QEMU itself may run, too."""
    return {"cpuset": ",".join(place.pins)} if place.pins else {}


def devices(place: Place) -> tuple[ET.Element, ...]:
    """The functions, each under its alias, and room for their registers."""
    passed = (
        _hostdev(use, number, address) for use in _PASSED for number, address in enumerate(place.of(use))
    )
    return (*_window(place), *passed)


def vf_interface(vf: PciAddress, mac: MacAddress) -> ET.Element:
    """A VF as the machine's card; libvirt sets its MAC before the guest has it."""
    return element(
        "interface", element("mac", address=mac), _source(vf, type="pci"), type="hostdev", managed="yes"
    )


def place_in(domain: ET.Element) -> Place:
    """Raises `ValueError` where the domain has what nobody could have written."""
    node = domain.find("numatune/memory")
    page = domain.find("memoryBacking/hugepages/page")
    driver = domain.find("devices/interface/driver")
    cards = _addresses(domain, "devices/interface[@type='hostdev']")
    return Place(
        devices=(*_host_devices(domain), *(HostDevice(card, "card") for card in cards)),
        pins=tuple(pin.get("cpuset", "") for pin in _by_vcpu(domain)),
        nodeset=node.get("nodeset") if node is not None else None,
        # libvirt answers in KiB whatever it was told.
        hugepage_kib=int(page.get("size", "")) if page is not None else None,
        queues=int(driver.get("queues", "1")) if driver is not None else 1,
    )


def devices_in(domain: ET.Element) -> tuple[PciAddress, ...]:
    """Every PCI function that a domain, anybody's, has or would have: disks may be functions too."""
    return tuple(_addresses(domain, "devices/*"))


def _memory(place: Place) -> Iterator[ET.Element]:
    if place.hugepage_kib is not None:
        page = element("page", size=str(place.hugepage_kib), unit="KiB")
        yield element("memoryBacking", element("hugepages", page))
    if place.nodeset is not None:
        # Strict: a guest that would get memory of another node does not start, instead of being slow for its life.
        yield element("numatune", element("memory", mode="strict", nodeset=place.nodeset))


def _processors(place: Place) -> Iterator[ET.Element]:
    if place.pins:
        pins = (element("vcpupin", vcpu=str(vcpu), cpuset=cpu) for vcpu, cpu in enumerate(place.pins))
        yield element("cputune", *pins)


def _physical_addresses(place: Place, accelerator: str) -> Iterator[ET.Element]:
    # Firmware lays large BARs only where the guest's processor can address them, and QEMU's own model has 40 bits.
    if place.of("gpu") and accelerator == "kvm":
        yield element("cpu", element("maxphysaddr", mode="passthrough"), mode="host-passthrough")


def _window(place: Place) -> Iterator[ET.Element]:
    if gpus := place.of("gpu"):
        # One more than there are GPUs: a BAR lies at a multiple of its own size.
        hole = element("pcihole64", str(_GPU_WINDOW_KIB * (len(gpus) + 1)), unit="KiB")
        yield element("controller", hole, type="pci", index="0", model="pcie-root")


def _hostdev(use: Use, number: int, address: PciAddress) -> ET.Element:
    # Managed: libvirt binds it to vfio-pci, and gives it back to no driver when there was none.
    return element(
        "hostdev",
        _source(address),
        element("alias", name=f"ua-{use}{number}"),
        mode="subsystem",
        type="pci",
        managed="yes",
    )


def _source(address: PciAddress, **more: str) -> ET.Element:
    domain, bus, rest = address.split(":")
    slot, function = rest.split(".")
    words = {"domain": domain, "bus": bus, "slot": slot, "function": function}
    numbers = {name: f"0x{digits}" for name, digits in words.items()}
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
        # That of a USB device has a bus, and no slot.
        if address.get("slot") is not None:
            domain, bus, slot, function = (
                int(address.get(name, "0"), 16) for name in ("domain", "bus", "slot", "function")
            )
            yield pci_address(f"{domain:04x}:{bus:02x}:{slot:02x}.{function:x}")


def _by_vcpu(domain: ET.Element) -> list[ET.Element]:
    return sorted(domain.iterfind("cputune/vcpupin"), key=lambda pin: int(pin.get("vcpu", "")))
