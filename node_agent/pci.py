"""The PCI functions of a host, as its kernel shows them, and what may be concluded of them.

Sources: Documentation/ABI/testing/sysfs-bus-pci of the kernel, PCI Code and ID Assignment (class codes), and
Documentation/driver-api/vfio.rst for what an IOMMU group is: the least that can be given to a guest, since devices of
one group can reach one another past the IOMMU.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from events.values import PciAddress
from node_agent.slices import HostUnreadable

PciKind = Literal["gpu", "fabric", "vf", "bridge", "other"]
"""A VF is that whatever it is a part of. `fabric` has an RDMA device: a card without one carries frames alone."""

_DISPLAYS: Final = frozenset({0x0300, 0x0302})
_NETWORKS: Final = frozenset({0x0200, 0x0207})
_INFINIBAND: Final = 0x0207
_BRIDGES: Final = frozenset({0x0600, 0x0604})
"""Host and PCI-to-PCI. An NVSwitch is of class 0680, and no bridge: it reaches the memory of GPUs."""
_UPLINK: Final = re.compile(r"p(?P<function>\d+)")
_REPRESENTOR: Final = re.compile(r"(?:c\d+)?(?:pf(?P<function>\d+)vf)?(?P<vf>\d+)")
"""`pf0vf3`; with the controller before it on a card of its own; the VF's number alone from kernels before 5.0."""


@dataclass(frozen=True, slots=True)
class Netdev:
    """A link of a PCI function. One of an embedded switch has the switch's id, and says which port of it it is.

    `number` is the kernel's (`ifindex`), and stays when the link gets another name; None: it vanished meanwhile.
    """

    name: str
    number: int | None = None
    switch_id: str | None = None
    port: str | None = None


@dataclass(frozen=True, slots=True)
class PciDevice:
    """One function. `class_code` has three bytes, the programming interface last.

    `physical_function` is that of a VF; `virtual_functions` are a PF's, by their numbers; `most_virtual_functions` is
    0 where there cannot be any. `reset_methods` are in the kernel's order; empty: it cannot be reset. `unread` says why
    no more could be read of it than its address and its group, and the rest says nothing then.
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
        # An InfiniBand card that is kept for guests has no driver here that would make an RDMA device of it.
        if class_ == _INFINIBAND or (class_ in _NETWORKS and self.rdma):
            return "fabric"
        return "bridge" if class_ in _BRIDGES else "other"

    @property
    def number(self) -> str:
        """Vendor and device as people write them, `10de:2330`."""
        return f"{self.vendor:04x}:{self.device:04x}"


class PciDevices:
    """All functions of a host, by their addresses."""

    def __init__(self, devices: Iterable[PciDevice]) -> None:
        self._devices = {device.address: device for device in devices}

    def __iter__(self) -> Iterator[PciDevice]:
        return iter(self._devices.values())

    def find(self, address: PciAddress) -> PciDevice | None:
        return self._devices.get(address)

    def group_of(self, device: PciDevice) -> tuple[PciDevice, ...]:
        """All that shares its IOMMU group, itself too; empty for one that is in none."""
        if device.iommu_group is None:
            return ()
        return tuple(each for each in self if each.iommu_group == device.iommu_group)

    def behind(self, vf: PciAddress) -> int | None:
        """The number of the link that a VF's frames come from on the host; None where there is none.

        Raises `HostUnreadable` where the VF could not be read, or its card.
        """
        device = self.find(vf)
        parent = device.physical_function if device is not None else None
        _check_read(device, self.find(parent) if parent is not None else None)
        representor = self.representor_of(device) if device is not None else None
        return representor.number if representor is not None else None

    def representors(self) -> Iterator[tuple[PciAddress, int]]:
        """The VFs that have one, and its number; at their end, raises `HostUnreadable` where others may have one."""
        for device in self:
            representor = self.representor_of(device)
            if representor is not None and representor.number is not None:
                yield device.address, representor.number
        # Nothing is known of what one is: it may be a card, or of one.
        _check_read(*self)

    def representor_of(self, vf: PciDevice) -> Netdev | None:
        """The port of the embedded switch that a VF is behind, where its card is in switchdev mode."""
        parent = self.find(vf.physical_function) if vf.physical_function is not None else None
        if parent is None or vf.address not in parent.virtual_functions:
            return None
        number = parent.virtual_functions.index(vf.address)
        uplink = next((each for each in parent.netdevs if _UPLINK.fullmatch(each.port or "")), None)
        # A switch may span both ports of a card: then every function shows all of its representors.
        switch_id = uplink.switch_id if uplink is not None else None
        function = int(parent.address[-1])
        for netdev in parent.netdevs:
            match = _REPRESENTOR.fullmatch(netdev.port or "")
            if match is None or netdev.switch_id is None or netdev.switch_id != switch_id:
                continue
            if int(match["vf"]) == number and int(match["function"] or function) == function:
                return netdev
        return None


def _check_read(*devices: PciDevice | None) -> None:
    for device in devices:
        if device is not None and device.unread is not None:
            raise HostUnreadable(f"PCI device {device.address}: {device.unread}")
