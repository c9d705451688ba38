"""A guest as a libvirt domain, written and read back (libvirt.org/formatdomain.html).

What is not written here is libvirt's choice and may change with it, and reading disregards all of that: only what
makes the guest is read. A domain without this program's mark is nobody's guest.
"""

import xml.etree.ElementTree as ET
from typing import Final
from uuid import UUID

from events.values import allocation_id, image_name, mac_address
from node_agent.guests import Guest, Hosting
from node_agent.images import Image

_OURS: Final = "urn:sliceplane:guest:1"
_OFFLOADS: Final = ("csum", "gso", "tso4", "tso6", "ecn", "ufo")
_NAMING: Final = ("target", "mac")
ET.register_namespace("sliceplane", _OURS)


class NotAGuest(ValueError):
    """The domain was not made by this program, or not by a version whose guests this one can tell apart."""


def domain_xml(guest: Guest, hosting: Hosting) -> str:
    """The domain to create: direct boot, one virtio interface on a tap made before, no listening display."""
    domain = _element(
        "domain",
        _element("name", guest.name),
        _element("uuid", str(guest.uuid)),
        _element("metadata", _marks(guest)),
        _element("memory", str(guest.memory_mib), unit="MiB"),
        _element("vcpu", str(guest.vcpus)),
        _boot(hosting.image),
        _element("features", _element("acpi"), _element("apic")),
        # A guest that put itself to sleep would run, and answer nobody.
        _element("pm", *(_element(f"suspend-to-{kind}", enabled="no") for kind in ("mem", "disk"))),
        _element("on_poweroff", "destroy"),
        _element("on_reboot", "restart"),
        _element("on_crash", "destroy"),
        _element("devices", _seed(hosting), _interface(guest, hosting), *_console(hosting), *_rest()),
        type=hosting.accelerator,
    )
    return ET.tostring(domain, encoding="unicode")


def guest_in(xml: str) -> Guest:
    """The guest in a domain's XML, libvirt's own additions disregarded. Raises `NotAGuest`."""
    domain = ET.fromstring(xml)
    marks = domain.find(f"metadata/{{{_OURS}}}guest")
    if marks is None:
        raise NotAGuest("the domain carries no mark of this program")
    try:
        return Guest(
            name=domain.findtext("name", ""),
            uuid=UUID(domain.findtext("uuid", "")),
            allocation_id=allocation_id(marks.get("allocation", "")),
            vcpus=int(domain.findtext("vcpu", "")),
            memory_mib=_memory_mib(domain),
            image=image_name(marks.get("image", "")),
            first_boot=marks.get("first-boot", ""),
            tap=_only(domain, "devices/interface/target").get("dev", ""),
            mac=mac_address(_only(domain, "devices/interface/mac").get("address", "")),
        )
    except ValueError as error:
        raise NotAGuest(str(error)) from error


def interfaces_in(xml: str) -> tuple[str, ...]:
    """Every link and every MAC that a domain, anybody's, lays hands on."""
    devices = ET.fromstring(xml).iterfind("devices/interface/*")
    named = (device.get("dev") or device.get("address") for device in devices if device.tag in _NAMING)
    return tuple(name for name in named if name)


def _marks(guest: Guest) -> ET.Element:
    marks = {"allocation": guest.allocation_id, "image": guest.image, "first-boot": guest.first_boot}
    return ET.Element(f"{{{_OURS}}}guest", marks)


def _boot(image: Image) -> ET.Element:
    return _element(
        "os",
        _element("type", "hvm", arch="x86_64", machine="q35"),
        _element("kernel", str(image.kernel)),
        _element("initrd", str(image.initrd)),
        _element("cmdline", image.cmdline),
    )


def _seed(hosting: Hosting) -> ET.Element:
    return _element(
        "disk",
        _element("driver", name="qemu", type="raw"),
        _element("source", file=str(hosting.seed)),
        _element("target", dev="vda", bus="virtio"),
        _element("readonly"),
        type="file",
        device="disk",
    )


def _interface(guest: Guest, hosting: Hosting) -> ET.Element:
    offloads = _element("host", **dict.fromkeys(_OFFLOADS, "off"))
    return _element(
        "interface",
        _element("mac", address=guest.mac),
        # Made before and not managed: the tap is guarded before it has a guest, and libvirt never deletes it.
        _element("target", dev=guest.tap, managed="no"),
        _element("model", type="virtio"),
        *(() if hosting.offload else (_element("driver", offloads, name="qemu"),)),
        _element("rom", enabled="no"),
        type="ethernet",
    )


def _console(hosting: Hosting) -> tuple[ET.Element, ...]:
    return (
        _element("serial", _element("log", file=str(hosting.console), append="off"), type="pty"),
        _element("graphics", _element("listen", type="none"), type="vnc"),
        _element("video", _element("model", type="vga")),
    )


def _rest() -> tuple[ET.Element, ...]:
    return (
        # Without it a guest waits a second and more for the randomness that its SSH server's keys want.
        _element("rng", _element("backend", "/dev/urandom", model="random"), model="virtio"),
        # libvirt adds these unless told otherwise, and what is not emulated cannot be attacked.
        _element("controller", type="usb", model="none"),
        _element("memballoon", model="none"),
    )


def _element(tag: str, *inside: ET.Element | str, **attributes: str) -> ET.Element:
    element = ET.Element(tag, attributes)
    for part in inside:
        if isinstance(part, str):
            element.text = part
        else:
            element.append(part)
    return element


def _memory_mib(domain: ET.Element) -> int:
    # libvirt answers in KiB whatever it was told (virsh dumpxml: `<memory unit='KiB'>`).
    memory = _only(domain, "memory")
    amount = int(memory.text or "")
    return amount if memory.get("unit") == "MiB" else amount // 1024


def _only(domain: ET.Element, path: str) -> ET.Element:
    match domain.findall(path):
        case [one]:
            return one
        case several:
            raise ValueError(f"{len(several)} of {path}, where a guest has one")
