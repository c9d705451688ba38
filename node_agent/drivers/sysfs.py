"""PCI functions out of sysfs, and their reset (kernel: Documentation/ABI/testing/sysfs-bus-pci).

What vanishes while it is read, as VFs do when their number is set, is not there. One that cannot be read is told as
such, since it says nothing of the others, but for its IOMMU group, on which theirs depend. Links are those of the
network namespace that sysfs was mounted in.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from errno import ENODEV, ENOENT
from pathlib import Path
from typing import Final

from events.values import InvalidValue, PciAddress, pci_address
from node_agent.drivers.deadlines import Deadlines, Overdue
from node_agent.looks import look, look_again
from node_agent.pci import Netdev, PciDevice, PciDevices
from node_agent.slices import HostRefused, HostUnreadable

RESET_SECONDS: Final = 10.0
"""A function's own reset takes a tenth of one, a bus's takes one, and the kernel waits a minute for what is dead."""


class SysfsPci:
    """`node_agent.passthrough.PciBus`. `root` is where sysfs is mounted; a host without a PCI bus has no devices.

    `reset_seconds` is the deadline of a reset, which may take effect after it.
    """

    def __init__(self, root: Path, reset_seconds: float = RESET_SECONDS) -> None:
        self._folder, self._reset_seconds = root / "bus" / "pci" / "devices", reset_seconds
        self._deadlines = Deadlines()

    def devices(self) -> PciDevices:
        return look((self, "PCI devices"), lambda: PciDevices(self._found()))

    def reset(self, address: PciAddress) -> None:
        look_again()
        try:
            # The kernel takes the first of the function's `reset_method` that works.
            self._deadlines.within(
                self._reset_seconds, lambda: _write(self._folder / address / "reset", b"1")
            )
        except Overdue as overdue:
            raise HostUnreadable(f"reset PCI device {address}: {overdue}") from overdue
        except OSError as error:
            raise HostRefused(f"reset PCI device {address}: {error.strerror}") from error

    def _found(self) -> Iterator[PciDevice]:
        try:
            folders = sorted(self._folder.iterdir())
        except FileNotFoundError:
            return
        except OSError as error:
            raise HostUnreadable(f"PCI devices: {error}") from error
        for folder in folders:
            try:
                yield _device(folder)
            except (OSError, ValueError) as error:
                if isinstance(error, OSError) and error.errno in {ENOENT, ENODEV}:
                    continue
                yield _unread(folder, error)


def _device(folder: Path) -> PciDevice:
    node = int(_text(folder / "numa_node") or -1)
    group, driver = _linked(folder / "iommu_group"), _linked(folder / "driver")
    parent = _linked(folder / "physfn")
    return PciDevice(
        address=pci_address(folder.name),
        vendor=int((folder / "vendor").read_text(), 16),
        device=int((folder / "device").read_text(), 16),
        class_code=int((folder / "class").read_text(), 16),
        numa_node=node if node >= 0 else None,
        iommu_group=group,
        driver=driver,
        physical_function=pci_address(parent) if parent is not None else None,
        virtual_functions=tuple(_virtual_functions(folder)),
        most_virtual_functions=int(_text(folder / "sriov_totalvfs") or 0),
        reset_methods=_reset_methods(folder),
        netdevs=tuple(map(_netdev, _entries(folder, "net", "virtio*/net"))),
        rdma=tuple(entry.name for entry in _entries(folder, "infiniband")),
    )


def _unread(folder: Path, why: Exception) -> PciDevice:
    try:
        address, group = pci_address(folder.name), _linked(folder / "iommu_group")
    except (OSError, ValueError):
        raise HostUnreadable(f"PCI device {folder.name}: {why}") from why
    return PciDevice(address, vendor=0, device=0, class_code=0, iommu_group=group, unread=str(why))


def _virtual_functions(folder: Path) -> Iterator[PciAddress]:
    links = (int(link.name.removeprefix("virtfn")) for link in folder.glob("virtfn*"))
    for number in sorted(links):
        with suppress(InvalidValue):
            yield pci_address(_linked(folder / f"virtfn{number}") or "")


def _reset_methods(folder: Path) -> tuple[str, ...]:
    methods = _text(folder / "reset_method")
    if methods is not None:
        return tuple(methods.split())
    # Kernels before 5.15 say only that there is one.
    return ("unnamed",) if (folder / "reset").exists() else ()


def _netdev(folder: Path) -> Netdev:
    number = _text(folder / "ifindex")
    return Netdev(
        folder.name,
        int(number) if number is not None else None,
        _text(folder / "phys_switch_id"),
        _text(folder / "phys_port_name"),
    )


def _entries(folder: Path, *patterns: str) -> Iterator[Path]:
    for pattern in patterns:
        for inside in folder.glob(pattern):
            yield from sorted(inside.iterdir())


def _write(path: Path, content: bytes) -> None:
    # Write only: the kernel refuses to open such a file for reading, and nothing makes one that is not there.
    file = os.open(path, os.O_WRONLY)
    try:
        os.write(file, content)
    finally:
        os.close(file)


def _linked(path: Path) -> str | None:
    try:
        return path.readlink().name
    except FileNotFoundError:
        return None


def _text(path: Path) -> str | None:
    """None where the kernel has no such file, or none for this device (a link that is no port of a switch)."""
    try:
        return path.read_text().strip() or None
    except OSError:
        return None
