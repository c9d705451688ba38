"""Read the host's PCI functions from sysfs, bind and reset them (kernel: Documentation/ABI/testing/sysfs-bus-pci).

A function that disappears during the read counts as absent: a card removes its virtual functions when a program changes
their number. A function that cannot be read is listed as unreadable and does not affect the others. But its IOMMU group
must be readable, because the isolation of other functions depends on that group. Network links are those of the
namespace in which sysfs was mounted.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from errno import ENODEV, ENOENT
from pathlib import Path
from typing import Final

from events.values import InvalidValue, PciAddress, pci_address
from node_agent.drivers.deadlines import DeadlineExceeded, Deadlines
from node_agent.host.device_texts import prefetchable_bars
from node_agent.host.pci import Netdev, PciDevice, PciDevices
from node_agent.host.slices import HostRefused, HostUnreadable
from node_agent.host.snapshots import invalidate_reads, look

RESET_SECONDS: Final = 10.0
"""Deadline of the reset of a PCI function, in seconds. A function-level reset takes 0.1 s and a bus reset 1 s; the
kernel waits 60 s for a device that does not respond."""


class SysfsPci:
    """Implementation of `node_agent.aspects.passthrough.PciBus` by sysfs, which is mounted at `root`.

    A host without a PCI bus has no devices. `reset_seconds` is the deadline of a reset, which may still take effect
    later.
    """

    def __init__(self, root: Path, reset_seconds: float = RESET_SECONDS) -> None:
        self._folder, self._reset_seconds = root / "bus" / "pci" / "devices", reset_seconds
        self._vfio = root / "bus" / "pci" / "drivers" / "vfio-pci"
        self._deadlines = Deadlines()

    def devices(self) -> PciDevices:
        return look((self, "PCI devices"), lambda: PciDevices(self._found()))

    def bars(self, addresses: Iterable[PciAddress]) -> tuple[int, ...]:
        sizes: list[int] = []
        for address in addresses:
            try:
                sizes += prefetchable_bars((self._folder / address / "resource").read_text())
            except FileNotFoundError:
                continue
            except OSError as error:
                reason = f"cannot read the BARs of PCI device {address}: {error.strerror}"
                raise HostUnreadable(reason) from error
        return tuple(sizes)

    def bind(self, address: PciAddress) -> None:
        invalidate_reads()
        if not self._vfio.exists():
            raise HostRefused(f"cannot bind PCI device {address}: the kernel module vfio-pci is not loaded")
        try:
            # With the override, vfio-pci accepts the function, and every other driver refuses it.
            _write(self._folder / address / "driver_override", b"vfio-pci")
            _write(self._vfio / "bind", address.encode())
        except OSError as error:
            raise HostRefused(f"cannot bind PCI device {address} to vfio-pci: {error.strerror}") from error

    def unbind(self, address: PciAddress) -> None:
        invalidate_reads()
        try:
            _write(self._vfio / "unbind", address.encode())
            # An empty line removes the override. The kernel does not offer the function to other drivers until a
            # program requests it.
            _write(self._folder / address / "driver_override", b"\n")
        except OSError as error:
            raise HostRefused(f"cannot take PCI device {address} from vfio-pci: {error.strerror}") from error

    def reset(self, address: PciAddress) -> None:
        invalidate_reads()
        try:
            # The kernel uses the first method in the function's `reset_method` that works.
            self._deadlines.within(
                self._reset_seconds, lambda: _write(self._folder / address / "reset", b"1")
            )
        except DeadlineExceeded as overdue:
            raise HostUnreadable(f"cannot reset PCI device {address}: {overdue}") from overdue
        except OSError as error:
            raise HostRefused(f"cannot reset PCI device {address}: {error.strerror}") from error

    def _found(self) -> Iterator[PciDevice]:
        try:
            folders = sorted(self._folder.iterdir())
        except FileNotFoundError:
            return
        except OSError as error:
            raise HostUnreadable(f"cannot list PCI devices: {error}") from error
        for folder in folders:
            try:
                yield _device(folder)
            except (OSError, ValueError) as error:
                if isinstance(error, OSError) and error.errno in {ENOENT, ENODEV}:
                    continue
                yield _unreadable(folder, error)


def _device(folder: Path) -> PciDevice:
    node = int(_text(folder / "numa_node") or -1)
    group, driver = _link_target(folder / "iommu_group"), _link_target(folder / "driver")
    parent = _link_target(folder / "physfn")
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


def _unreadable(folder: Path, reason: Exception) -> PciDevice:
    try:
        address, group = pci_address(folder.name), _link_target(folder / "iommu_group")
    except (OSError, ValueError):
        raise HostUnreadable(f"cannot read PCI device {folder.name}: {reason}") from reason
    return PciDevice(address, vendor=0, device=0, class_code=0, iommu_group=group, unread=str(reason))


def _virtual_functions(folder: Path) -> Iterator[PciAddress]:
    links = (int(link.name.removeprefix("virtfn")) for link in folder.glob("virtfn*"))
    for number in sorted(links):
        with suppress(InvalidValue):
            yield pci_address(_link_target(folder / f"virtfn{number}") or "")


def _reset_methods(folder: Path) -> tuple[str, ...]:
    methods = _text(folder / "reset_method")
    if methods is not None:
        return tuple(methods.split())
    # Kernels before 5.15 show only whether a reset method exists.
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
    # Write-only, because the kernel refuses to open such a file for reading. Without O_CREAT, a missing file is an
    # error.
    file = os.open(path, os.O_WRONLY)
    try:
        os.write(file, content)
    finally:
        os.close(file)


def _link_target(path: Path) -> str | None:
    try:
        return path.readlink().name
    except FileNotFoundError:
        return None


def _text(path: Path) -> str | None:
    """Return the content of a sysfs file, or None if the file is missing, unreadable or empty.

    A file may be unreadable for some devices only, for example for a link that is not a port of a switch.
    """
    try:
        return path.read_text().strip() or None
    except OSError:
        return None
