"""PCI functions of a host, as its kernel shows them, with their kinds, IOMMU groups and representors.

Sources: Documentation/ABI/testing/sysfs-bus-pci of the kernel, PCI Code and ID Assignment (class codes), and
Documentation/driver-api/vfio.rst for IOMMU groups: a group is the smallest unit that can be given to a guest, because
devices of one group can reach one another without passing the IOMMU.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from events.values import PciAddress
from node_agent.host.slices import HostUnreadable

PciKind = Literal["gpu", "fabric", "vf", "bridge", "other"]
"""Kind of a PCI function. A virtual function is a `vf`, whatever its card is. A `fabric` device supports RDMA; a
network card without RDMA is of kind `other`."""

_DISPLAYS: Final = frozenset({0x0300, 0x0302})
_NETWORKS: Final = frozenset({0x0200, 0x0207})
_INFINIBAND: Final = 0x0207
_BRIDGES: Final = frozenset({0x0600, 0x0604})
"""Class codes of host bridges and PCI-to-PCI bridges. The class of an NVSwitch (0680) is not one of them, because an
NVSwitch reaches GPU memory."""
_UPLINK: Final = re.compile(r"p(?P<function>\d+)")
_REPRESENTOR: Final = re.compile(r"(?:c\d+)?(?:pf(?P<function>\d+)vf)?(?P<vf>\d+)")
"""Port name of a VF's representor: `pf0vf3`, with a prefix such as `c1` if the VF belongs to an external PCI controller
(Documentation/networking/devlink/devlink-port.rst), and only the VF's number in kernels before 5.0."""


@dataclass(frozen=True, slots=True)
class Netdev:
    """A network link of a PCI function. A link of an embedded switch has the switch's id and its own port name.

    `number` is the kernel's `ifindex`, which a rename does not change; None if the link vanished while it was read.
    """

    name: str
    number: int | None = None
    switch_id: str | None = None
    port: str | None = None


@dataclass(frozen=True, slots=True)
class PciDevice:
    """One PCI function. `class_code` has three bytes, the programming interface last.

    A VF has a `physical_function`; a physical function has `virtual_functions`, ordered by number, and a maximum of
    them, `most_virtual_functions` (0: not supported). `reset_methods` are in the kernel's order; empty: it cannot be
    reset. `unread` is the reason why only the address and the group could be read; the other fields are then invalid.
    """

    address: PciAddress
    vendor: int
    device: int
    class_code: int
    numa_node: int | None = None
    iommu_group: str | None = None
    driver: str | None = None
    physical_function: PciAddress | None = None
    virtual_functions: tuple[PciAddress, ...] = ()
    most_virtual_functions: int = 0
    reset_methods: tuple[str, ...] = ()
    netdevs: tuple[Netdev, ...] = ()
    rdma: tuple[str, ...] = ()
    unread: str | None = None

    @property
    def kind(self) -> PciKind:
        class_ = self.class_code >> 8
        if self.physical_function is not None:
            return "vf"
        if class_ in _DISPLAYS:
            return "gpu"
        # An InfiniBand card that is reserved for guests has no driver on the host, and so no RDMA device.
        if class_ == _INFINIBAND or (class_ in _NETWORKS and self.rdma):
            return "fabric"
        return "bridge" if class_ in _BRIDGES else "other"

    @property
    def number(self) -> str:
        """Vendor id and device id of a PCI function in the notation of lspci, such as `10de:2330`."""
        return f"{self.vendor:04x}:{self.device:04x}"


class PciDevices:
    """All PCI functions of a host, by address."""

    def __init__(self, devices: Iterable[PciDevice]) -> None:
        self._devices = {device.address: device for device in devices}

    def __iter__(self) -> Iterator[PciDevice]:
        return iter(self._devices.values())

    def find(self, address: PciAddress) -> PciDevice | None:
        return self._devices.get(address)

    def group_of(self, device: PciDevice) -> tuple[PciDevice, ...]:
        """Return all PCI functions in the IOMMU group of a device, including the device itself; empty if the device is
        in no group.
        """
        if device.iommu_group is None:
            return ()
        return tuple(each for each in self if each.iommu_group == device.iommu_group)

    def behind(self, vf: PciAddress) -> int | None:
        """Return the `ifindex` of a VF's representor, on which the host receives the VF's frames; None without one.

        Raises `HostUnreadable` if the VF or its card could not be read.
        """
        device = self.find(vf)
        parent = device.physical_function if device is not None else None
        _check_read(device, self.find(parent) if parent is not None else None)
        representor = self.representor_of(device) if device is not None else None
        return representor.number if representor is not None else None

    def representors(self) -> Iterator[tuple[PciAddress, int]]:
        """Yield each VF that has a representor, with the representor's `ifindex`.

        Raises `HostUnreadable` after the last VF if a PCI function could not be read, because it may be a VF with a
        representor.
        """
        for device in self:
            representor = self.representor_of(device)
            if representor is not None and representor.number is not None:
                yield device.address, representor.number
        # A function that could not be read may be a card or a VF.
        _check_read(*self)

    def representor_of(self, vf: PciDevice) -> Netdev | None:
        """Return the representor of a VF, a port of the card's embedded switch; None without switchdev mode."""
        parent = self.find(vf.physical_function) if vf.physical_function is not None else None
        if parent is None or vf.address not in parent.virtual_functions:
            return None
        number = parent.virtual_functions.index(vf.address)
        uplink = next((each for each in parent.netdevs if _UPLINK.fullmatch(each.port or "")), None)
        # A switch may span both ports of a card. Each physical function then shows all representors of the switch.
        switch_id = uplink.switch_id if uplink is not None else None
        function = int(parent.address[-1])
        for netdev in parent.netdevs:
            match = _REPRESENTOR.fullmatch(netdev.port or "")
            if match is None or netdev.switch_id is None or netdev.switch_id != switch_id:
                continue
            if int(match["vf"]) == number and int(match["function"] or function) == function:
                return netdev
        return None


def is_representor(netdev: Netdev) -> bool:
    """Return whether a network link is a port of an embedded switch other than its uplink, such as a VF's
    representor.
    """
    return netdev.switch_id is not None and netdev.port is not None and not _UPLINK.fullmatch(netdev.port)


def _check_read(*devices: PciDevice | None) -> None:
    for device in devices:
        if device is not None and device.unread is not None:
            raise HostUnreadable(f"cannot read PCI device {device.address}: {device.unread}")
