"""Foreign settings of a libvirt domain: settings that the agent does not write for a guest.

The format is that of libvirt.org/formatdomain.html. libvirt adds devices by itself, and which ones depends on its
version, so only settings that it never adds are reported. A missing setting is not reported: it is harmless, and the
guest may come from an earlier version of this program. The boot configuration of a guest is compared with the digest in
its metadata, not with this host's present image paths.
"""

import hashlib
import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Final

_QEMU: Final = "{http://libvirt.org/schemas/domain/qemu/1.0}"
_WRITTEN_ONCE: Final = {"interface": 1, "serial": 1, "console": 1, "rng": 1, "graphics": 1}
"""The device elements of which this program writes exactly one into a guest's domain, each with its maximum number.
`console` is one of them, because libvirt lists the serial port as a console too.
"""
_NEVER_WRITTEN: Final = frozenset(
    [
        "channel",
        "crypto",
        "filesystem",
        "hub",
        "iommu",
        "lease",
        "memory",
        "parallel",
        "redirdev",
        "shmem",
        "smartcard",
        "sound",
        "tpm",
        "vsock",
    ]
)
_LIMITS: Final = ("memtune", "blkiotune")
_PINNING: Final = frozenset({"vcpupin", "emulatorpin", "iothreadpin"})
_HOST_INPUTS: Final = frozenset({"evdev", "passthrough"})


def disk_names(*, has_root_disk: bool) -> tuple[str, str]:
    """Return the names of a guest's root disk and seed disk: the root disk, if there is one, is the first disk."""
    return ("vda", "vdb") if has_root_disk else ("", "vda")


def boot_digest(domain: ET.Element, disks: tuple[str, str]) -> str:
    """Return the SHA-256 (hex) of the boot configuration: the files and the kernel command line that the guest boots
    from, and the files of its `disks`, as `disk_names` returns them.
    """
    return hashlib.sha256(json.dumps(_boot_files(domain, disks)).encode()).hexdigest()


def _boot_files(domain: ET.Element, disks: tuple[str, str]) -> list[str]:
    boot = [_line(domain, f"os/{part}") for part in ("kernel", "initrd", "cmdline")]
    firmware = [line for part in ("loader", "nvram") if (line := _line(domain, f"os/{part}"))]
    return [*boot, *firmware, *_sources(domain, disks)]


def foreign_settings_in(domain: ET.Element, boot: str | None, *, has_root_disk: bool) -> tuple[str, ...]:
    """Describe the foreign settings of a domain.

    `boot` is the digest of the boot configuration in the domain's metadata; None if the metadata have no digest yet.
    """
    return tuple(_foreign_settings(domain, boot, disk_names(has_root_disk=has_root_disk)))


def _foreign_settings(domain: ET.Element, boot: str | None, disks: tuple[str, str]) -> Iterator[str]:
    if boot is not None and boot != boot_digest(domain, disks):
        kernel, initrd, cmdline, *files = _boot_files(domain, disks)
        described = ", ".join(each for each in (kernel, initrd, *files) if each)
        yield f"another boot configuration: {described or 'no file'}, command line {cmdline!r}"
    for argument in domain:
        if argument.tag.startswith(_QEMU):
            yield f"qemu {argument.tag.removeprefix(_QEMU)}"
    for limit in (
        *domain.iterfind("cputune/*"),
        *(each for tag in _LIMITS for each in domain.iterfind(f"{tag}/*")),
    ):
        if limit.tag not in _PINNING:
            yield f"limit {limit.tag}"
    seen = dict.fromkeys(_WRITTEN_ONCE, 0)
    for device in domain.iterfind("devices/*"):
        if device.tag in seen:
            seen[device.tag] += 1
        if seen.get(device.tag, 0) > _WRITTEN_ONCE.get(device.tag, 0):
            yield f"another {device.tag}"
        else:
            yield from _in_device(device, disks)


def _in_device(device: ET.Element, disks: tuple[str, str]) -> Iterator[str]:
    type_ = device.get("type", "")
    match device.tag:
        case "disk":
            yield from _in_disk(device, *disks)
        case "interface":
            yield from _in_interface(device)
        case "graphics":
            yield from _in_display(device)
        case "hostdev" if type_ != "pci":
            yield f"hostdev {type_ or device.get('mode', '')}"
        case "serial" | "console" if type_ != "pty":
            yield f"{device.tag} {type_}"
        case "rng" if (backend := _attribute(device, "backend", "model")) != "random":
            yield f"rng {backend}"
        case "input" if type_ in _HOST_INPUTS:
            yield f"input {type_}"
        case tag if tag in _NEVER_WRITTEN:
            yield tag
        case _:
            pass


def _in_disk(disk: ET.Element, root: str, seed: str) -> Iterator[str]:
    name = _attribute(disk, "target", "dev")
    if name not in {root, seed}:
        yield f"disk {name}"
    elif name == seed and disk.find("readonly") is None:
        yield f"writable disk {name}"
    elif disk.find("iotune") is not None:
        yield f"I/O limit (iotune) of disk {name}"


def _in_interface(interface: ET.Element) -> Iterator[str]:
    if interface.get("type") not in {"ethernet", "hostdev"}:
        yield f"interface {interface.get('type')}"
    if _attribute(interface, "link", "state") == "down":
        yield "link down"
    if interface.find("bandwidth") is not None:
        yield "limit bandwidth"


def _in_display(display: ET.Element) -> Iterator[str]:
    listens = [each for each in display.iterfind("listen") if each.get("type") != "none"]
    places = [each.get("address") or each.get("socket") or "somewhere" for each in listens]
    if display.get("type") != "vnc" or places:
        yield f"display {display.get('type')} on {', '.join(places) or 'no address'}"


def _sources(domain: ET.Element, disks: tuple[str, str]) -> list[str]:
    """Return the files of the guest's own disks, ordered by the names of the disks; empty for a disk that is missing.
    Foreign disks are reported separately.
    """
    files = {
        _attribute(each, "target", "dev"): _attribute(each, "source", "file")
        for each in domain.iterfind("devices/disk")
    }
    return [files.get(name, "") for name in disks if name]


def _attribute(element: ET.Element, path: str, name: str) -> str:
    part = element.find(path)
    return part.get(name, "") if part is not None else ""


def _line(domain: ET.Element, path: str) -> str:
    # XML processing may change whitespace, so it is normalized.
    return " ".join(domain.findtext(path, "").split())
