"""Conversion between a guest and its libvirt domain XML (libvirt.org/formatdomain.html).

Elements that are not written here have libvirt's defaults, which may change with its version, so they are ignored when
a domain is read: only the guest's own parameters are read, and elements that only another program can have added
(`node_agent.drivers.machines.foreign_domain_settings`). A domain without this program's metadata is not a guest of this
agent.
"""

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Final
from uuid import UUID

from events.values import PciAddress, allocation_id, image_name, mac_address
from node_agent.drivers.machines.elements import element
from node_agent.drivers.machines.foreign_domain_settings import boot_digest, disk_names, foreign_settings_in
from node_agent.drivers.machines.host_resources_xml import (
    cpuset,
    devices,
    devices_in,
    place_in,
    tuning,
    vf_interface,
)
from node_agent.host.guests import DiskBoot, Guest, GuestDisk, Hosting
from node_agent.host.host_resources import Place
from node_agent.host.images import Image

_NAMESPACE: Final = "urn:sliceplane:guest:1"
_OFFLOADS: Final = ("csum", "gso", "tso4", "tso6", "ecn", "ufo")
_NAMING: Final = ("target", "mac")
ET.register_namespace("sliceplane", _NAMESPACE)


class NotAGuest(ValueError):
    """The libvirt domain was not created by Sliceplane, or it was created by a version of Sliceplane that wrote other
    metadata.
    """


def domain_xml(guest: Guest, hosting: Hosting) -> str:
    """Return the XML of a guest's domain: boot of a kernel or a root disk, one interface, and a display that listens on
    no address.

    The interface is a virtio device on a tap that already exists, or the PCI virtual function of the guest's resources.
    """
    marks = _marks(guest)
    domain = element(
        "domain",
        element("name", guest.name),
        element("uuid", str(guest.uuid)),
        element("metadata", marks),
        element("memory", str(guest.memory_mib), unit="MiB"),
        element("vcpu", str(guest.vcpus), **cpuset(guest.place)),
        *tuning(guest.place, hosting.accelerator),
        _boot(hosting.boot),
        element("features", element("acpi"), element("apic")),
        # A guest that suspends itself would count as running and not answer.
        element("pm", *(element(f"suspend-to-{kind}", enabled="no") for kind in ("mem", "disk"))),
        element("on_poweroff", "destroy"),
        element("on_reboot", "restart"),
        element("on_crash", "destroy"),
        element(
            "devices",
            *_disks(hosting),
            _interface(guest, hosting),
            *_console(hosting),
            *_common_devices(),
            *devices(guest.place, hosting.bars),
        ),
        type=hosting.accelerator,
    )
    marks.set("boot", boot_digest(domain, _disk_names(hosting)))
    return ET.tostring(domain, encoding="unicode")


def guest_in(xml: str) -> Guest:
    """Parse the guest in a domain's XML; libvirt's own additions are ignored. Raises `NotAGuest`."""
    domain = ET.fromstring(xml)
    marks = domain.find(f"metadata/{{{_NAMESPACE}}}guest")
    if marks is None:
        raise NotAGuest("the libvirt domain has no metadata of Sliceplane")
    try:
        place = place_in(domain)
        return Guest(
            name=domain.findtext("name", ""),
            uuid=UUID(domain.findtext("uuid", "")),
            allocation_id=allocation_id(marks.get("allocation", "")),
            vcpus=int(domain.findtext("vcpu", "")),
            memory_mib=_memory_mib(domain),
            image=image_name(marks.get("image", "")),
            first_boot=marks.get("first-boot", ""),
            tap=_tap(domain, place),
            mac=mac_address(_first(domain, "devices/interface/mac").get("address", "")),
            place=place,
            strange=foreign_settings_in(domain, marks.get("boot"), has_root_disk="root-disk" in marks.attrib),
            root_disk=_root_disk(marks.get("root-disk")),
        )
    except ValueError as error:
        raise NotAGuest(str(error)) from error


def interfaces_in(xml: str) -> tuple[str, ...]:
    """Return the link names and MAC addresses in the XML of a domain, which may belong to another program."""
    parts = ET.fromstring(xml).iterfind("devices/interface/*")
    named = (part.get("dev") or part.get("address") for part in parts if part.tag in _NAMING)
    return tuple(name for name in named if name)


def pci_devices_in(xml: str) -> tuple[PciAddress, ...]:
    """Return the host's PCI functions in the XML of a domain. The domain may belong to another program or be switched
    off.
    """
    return devices_in(ET.fromstring(xml))


def _marks(guest: Guest) -> ET.Element:
    marks = {"allocation": guest.allocation_id, "image": guest.image, "first-boot": guest.first_boot}
    if (disk := guest.root_disk) is not None:
        marks["root-disk"] = f"{disk.digest} {disk.size_gib} {disk.firmware}"
    return ET.Element(f"{{{_NAMESPACE}}}guest", marks)


def _root_disk(mark: str | None) -> GuestDisk | None:
    if mark is None:
        return None
    match mark.split():
        case [digest, size, "uefi" | "bios" as firmware]:
            return GuestDisk(digest, int(size), firmware)
        case _:
            raise ValueError(f"the mark of the root disk, {mark!r}, is not a digest, a size and a firmware")


def _boot(boot: Image | DiskBoot) -> ET.Element:
    kind = element("type", "hvm", arch="x86_64", machine="q35")
    if isinstance(boot, Image):
        files = {"kernel": str(boot.kernel), "initrd": str(boot.initrd), "cmdline": boot.cmdline}
        return element("os", kind, *(element(name, text) for name, text in files.items()))
    if boot.loader is None:
        return element("os", kind)
    return element(
        "os",
        kind,
        element("loader", str(boot.loader), readonly="yes", type="pflash"),
        element("nvram", str(boot.nvram), template=str(boot.variables)),
    )


def _disks(hosting: Hosting) -> tuple[ET.Element, ...]:
    root, seed = _disk_names(hosting)
    disks = (_disk(hosting.seed, "raw", seed, element("readonly")),)
    if not isinstance(hosting.boot, DiskBoot):
        return disks
    return (_disk(hosting.boot.root_disk, "qcow2", root, element("boot", order="1")), *disks)


def _disk_names(hosting: Hosting) -> tuple[str, str]:
    return disk_names(has_root_disk=isinstance(hosting.boot, DiskBoot))


def _disk(file: Path, format_: str, name: str, *more: ET.Element) -> ET.Element:
    return element(
        "disk",
        element("driver", name="qemu", type=format_),
        element("source", file=str(file)),
        element("target", dev=name, bus="virtio"),
        *more,
        type="file",
        device="disk",
    )


def _interface(guest: Guest, hosting: Hosting) -> ET.Element:
    if guest.place.vf is not None:
        return vf_interface(guest.place.vf, guest.mac)
    return element(
        "interface",
        element("mac", address=guest.mac),
        # The tap exists already and is not managed by libvirt: its flows are set before a guest uses it, and libvirt
        # never deletes it.
        element("target", dev=guest.tap, managed="no"),
        element("model", type="virtio"),
        *_driver(guest.place.queues, offload=hosting.offload),
        element("rom", enabled="no"),
        type="ethernet",
    )


def _driver(queues: int, *, offload: bool) -> tuple[ET.Element, ...]:
    several = {"queues": str(queues)} if queues > 1 else {}
    if not offload:
        offloads = element("host", **dict.fromkeys(_OFFLOADS, "off"))
        return (element("driver", offloads, name="qemu", **several),)
    # Without this element libvirt would fall back to QEMU, where one thread serves all queues.
    return (element("driver", name="vhost", **several),) if several else ()


def _console(hosting: Hosting) -> tuple[ET.Element, ...]:
    return (
        # Appended: after a machine was started again, its log shows why it had stopped.
        element("serial", element("log", file=str(hosting.console), append="on"), type="pty"),
        element("graphics", element("listen", type="none"), type="vnc"),
        element("video", element("model", type="vga")),
    )


def _common_devices() -> tuple[ET.Element, ...]:
    return (
        # Without it a guest waits a second or more for the randomness that its SSH server's keys need.
        element("rng", element("backend", "/dev/urandom", model="random"), model="virtio"),
        # libvirt adds these by default, and a device that is not emulated cannot be attacked.
        element("controller", type="usb", model="none"),
        element("memballoon", model="none"),
    )


def _memory_mib(domain: ET.Element) -> int:
    # libvirt returns KiB whatever the unit in the original XML (virsh dumpxml: `<memory unit='KiB'>`).
    memory = _only(domain, "memory")
    amount = int(memory.text or "")
    return amount if memory.get("unit") == "MiB" else amount // 1024


def _tap(domain: ET.Element, place: Place) -> str:
    if place.vf is not None:
        return domain.findtext("name", "")
    return _first(domain, "devices/interface/target").get("dev", "")


def _first(domain: ET.Element, path: str) -> ET.Element:
    """Return the first element at `path` of a domain's XML. Raises `ValueError`.

    Further elements at `path` were added by other programs and are listed in `Guest.strange`.
    """
    if (first := domain.find(path)) is None:
        raise ValueError(f"the domain has no element {path}; a guest's domain must have one")
    return first


def _only(domain: ET.Element, path: str) -> ET.Element:
    match domain.findall(path):
        case [one]:
            return one
        case several:
            raise ValueError(f"the domain has {len(several)} elements {path}; a guest's domain must have one")
