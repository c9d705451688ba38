"""Host resources reserved for the machine of a slot: PCI functions, CPUs, NUMA node of its memory, huge pages.

They come from the node's settings and belong to the slot, not to the order: the slot's tenant gets all of them, and a
guest with other resources differs from the ordered one. Two slots never share a resource; such settings are refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Literal

from events.values import PciAddress, SlotIndex
from node_agent.host.slices import Slice

Use = Literal["gpu", "fabric", "card"]
"""Use of a PCI function: functions with the use `gpu` or `fabric` are passed through to the machine, and a `card` is a
virtual function that is the machine's network card instead of a tap."""
USES: Final[tuple[Use, ...]] = ("gpu", "fabric", "card")


@dataclass(frozen=True, slots=True)
class HostDevice:
    """A PCI function assigned to one machine. The use `unordered` marks a function that another program assigned."""

    address: PciAddress
    use: Use | Literal["unordered"]


@dataclass(frozen=True, slots=True)
class Place:
    """Host resources of one slot's machine.

    `pins` are CPUs of the host, one for each virtual CPU in order; if empty, the machine may use any CPU. `nodeset` is
    the NUMA node of the machine's memory; None: any node. Both are texts in libvirt's notation (`0-3`), because a
    running virtual CPU may be pinned to several CPUs, and the memory to several nodes. `hugepage_kib` is the size of
    the memory's huge pages in KiB; None: the memory is not backed by huge pages. `queues` is the number of queues of
    the machine's network card, and so the number of virtual CPUs that can send and receive at once.
    """

    devices: tuple[HostDevice, ...] = ()
    pins: tuple[str, ...] = ()
    nodeset: str | None = None
    hugepage_kib: int | None = None
    queues: int = 1

    @property
    def addresses(self) -> frozenset[PciAddress]:
        """Addresses of all PCI functions of the slot's machine."""
        return frozenset(device.address for device in self.devices)

    @property
    def vf(self) -> PciAddress | None:
        """The virtual function that is the machine's network card, or None if its card is a tap."""
        return next(iter(self.of("card")), None)

    def of(self, use: Use) -> tuple[PciAddress, ...]:
        """Return the addresses of the machine's PCI functions with this use, such as `gpu`."""
        return tuple(device.address for device in self.devices if device.use == use)


ANYWHERE: Final = Place()
Places = Mapping[SlotIndex, Place]
NO_PLACES: Final[Places] = MappingProxyType({})


def place_for(wanted: Slice, places: Places) -> Place:
    """Return the host resources of a slice's machine: those of its slot, with at most one CPU and one queue of the
    network card per virtual CPU of the machine.
    """
    place, vcpus = places.get(wanted.network.index, ANYWHERE), wanted.machine.vcpus
    return replace(place, pins=place.pins[:vcpus], queues=min(place.queues, vcpus))
