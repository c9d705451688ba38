"""A guest as a libvirt domain, written and read back (libvirt.org/formatdomain.html).

What is not written here is libvirt's choice and may change with it, and reading disregards all of that: only what
makes the guest is read, and what only another program can have added (`node_agent.strange_xml`). A domain without this
program's mark is nobody's guest.
"""

import xml.etree.ElementTree as ET
from typing import Final
from uuid import UUID

from events.values import PciAddress, allocation_id, image_name, mac_address
from node_agent.elements import element
from node_agent.guests import Guest, Hosting
from node_agent.images import Image
from node_agent.place_xml import cpuset, devices, devices_in, place_in, tuning, vf_interface
from node_agent.places import Place
from node_agent.strange_xml import boot_digest, strange_in

_OURS: Final = "urn:sliceplane:guest:1"
_OFFLOADS: Final = ("csum", "gso", "tso4", "tso6", "ecn", "ufo")
_NAMING: Final = ("target", "mac")
ET.register_namespace("sliceplane", _OURS)


class NotAGuest(ValueError):
    """The domain was not made by this program, or not by a version whose guests this one can tell apart."""


def domain_xml(guest: Guest, hosting: Hosting) -> str:
    """The domain to create: direct boot, one virtio interface on a tap made before, no listening display."""
    marks = _marks(guest)
    domain = element(
        "domain",
        element("name", guest.name),
        element("uuid", str(guest.uuid)),
        element("metadata", marks),
        element("memory", str(guest.memory_mib), unit="MiB"),
        element("vcpu", str(guest.vcpus), **cpuset(guest.place)),
        *tuning(guest.place, hosting.accelerator),
        _boot(hosting.image),
        element("features", element("acpi"), element("apic")),
        # A guest that put itself to sleep would run, and answer nobody.
        element("pm", *(element(f"suspend-to-{kind}", enabled="no") for kind in ("mem", "disk"))),
        element("on_poweroff", "destroy"),
        element("on_reboot", "restart"),
        element("on_crash", "destroy"),
        element(
            "devices",
            _seed(hosting),
            _interface(guest, hosting),
            *_console(hosting),
            *_rest(),
            *devices(guest.place),
        ),
        type=hosting.accelerator,
    )
    marks.set("boot", boot_digest(domain))
    return ET.tostring(domain, encoding="unicode")


def guest_in(xml: str) -> Guest:
    """The guest in a domain's XML, libvirt's own additions disregarded. Raises `NotAGuest`."""
    domain = ET.fromstring(xml)
    marks = domain.find(f"metadata/{{{_OURS}}}guest")
    if marks is None:
        raise NotAGuest("the domain carries no mark of this program")
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
            strange=strange_in(domain, marks.get("boot")),
        )
    except ValueError as error:
        raise NotAGuest(str(error)) from error


def interfaces_in(xml: str) -> tuple[str, ...]:
    """Every link and every MAC that a domain, anybody's, lays hands on."""
    parts = ET.fromstring(xml).iterfind("devices/interface/*")
    named = (part.get("dev") or part.get("address") for part in parts if part.tag in _NAMING)
    return tuple(name for name in named if name)


def pci_devices_in(xml: str) -> tuple[PciAddress, ...]:
    """Every PCI function of the host that a domain, anybody's, has or would have."""
    return devices_in(ET.fromstring(xml))


def _marks(guest: Guest) -> ET.Element:
    marks = {"allocation": guest.allocation_id, "image": guest.image, "first-boot": guest.first_boot}
    return ET.Element(f"{{{_OURS}}}guest", marks)


def _boot(image: Image) -> ET.Element:
    return element(
        "os",
        element("type", "hvm", arch="x86_64", machine="q35"),
        element("kernel", str(image.kernel)),
        element("initrd", str(image.initrd)),
        element("cmdline", image.cmdline),
    )


def _seed(hosting: Hosting) -> ET.Element:
    return element(
        "disk",
        element("driver", name="qemu", type="raw"),
        element("source", file=str(hosting.seed)),
        element("target", dev="vda", bus="virtio"),
        element("readonly"),
        type="file",
        device="disk",
    )


def _interface(guest: Guest, hosting: Hosting) -> ET.Element:
    if guest.place.vf is not None:
        return vf_interface(guest.place.vf, guest.mac)
    return element(
        "interface",
        element("mac", address=guest.mac),
        # Made before and not managed: the tap is guarded before it has a guest, and libvirt never deletes it.
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
    # Without it libvirt would fall back to QEMU, where all queues are one thread's.
    return (element("driver", name="vhost", **several),) if several else ()


def _console(hosting: Hosting) -> tuple[ET.Element, ...]:
    return (
        element("serial", element("log", file=str(hosting.console), append="off"), type="pty"),
        element("graphics", element("listen", type="none"), type="vnc"),
        element("video", element("model", type="vga")),
    )


def _rest() -> tuple[ET.Element, ...]:
    return (
        # Without it a guest waits a second and more for the randomness that its SSH server's keys want.
        element("rng", element("backend", "/dev/urandom", model="random"), model="virtio"),
        # libvirt adds these unless told otherwise, and what is not emulated cannot be attacked.
        element("controller", type="usb", model="none"),
        element("memballoon", model="none"),
    )


def _memory_mib(domain: ET.Element) -> int:
    # libvirt answers in KiB whatever it was told (virsh dumpxml: `<memory unit='KiB'>`).
    memory = _only(domain, "memory")
    amount = int(memory.text or "")
    return amount if memory.get("unit") == "MiB" else amount // 1024


def _tap(domain: ET.Element, place: Place) -> str:
    if place.vf is not None:
        return domain.findtext("name", "")
    return _first(domain, "devices/interface/target").get("dev", "")


def _first(domain: ET.Element, path: str) -> ET.Element:
    """Of what others may have added to; that they did is `strange`."""
    if (first := domain.find(path)) is None:
        raise ValueError(f"no {path}, where a guest has one")
    return first


def _only(domain: ET.Element, path: str) -> ET.Element:
    match domain.findall(path):
        case [one]:
            return one
        case several:
            raise ValueError(f"{len(several)} of {path}, where a guest has one")
