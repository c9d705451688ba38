"""What a slot's machine has of its host for itself alone, by the node's settings.

It is the slot's and not the order's: whoever gets the slot gets all of it, and a guest that has otherwise is another
guest than was ordered. Two slots never share any of it; the settings are refused where they would.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Literal

from events.values import PciAddress, SlotIndex
from node_agent.slices import Slice

Use = Literal["gpu", "fabric", "card"]
"""`card` is a virtual function as the machine's network card, in place of one on a tap."""
USES: Final[tuple[Use, ...]] = ("gpu", "fabric", "card")


@dataclass(frozen=True, slots=True)
class HostDevice:
    """A PCI function that a machine has to itself; `unordered` is what nobody of this program gave it."""

    address: PciAddress
    use: Use | Literal["unordered"]


@dataclass(frozen=True, slots=True)
class Place:
    """`pins` are the host's CPUs, one for each virtual CPU in its turn, and `nodeset` is the NUMA node of its memory,
    both in libvirt's words, since a running machine may have several of either; empty and None: any.

    `hugepage_kib` is the size of the pages that its memory is of. `queues` of its card, so that as many of its CPUs
    send and receive at once.
    """

    devices: tuple[HostDevice, ...] = ()
    pins: tuple[str, ...] = ()
    nodeset: str | None = None
    hugepage_kib: int | None = None
    queues: int = 1

    @property
    def addresses(self) -> frozenset[PciAddress]:
        """Of every function."""
        return frozenset(device.address for device in self.devices)

    @property
    def vf(self) -> PciAddress | None:
        """The virtual function that is the machine's card; None: its card is on a tap."""
        return next(iter(self.of("card")), None)

    def of(self, use: Use) -> tuple[PciAddress, ...]:
        return tuple(device.address for device in self.devices if device.use == use)


ANYWHERE: Final = Place()
Places = Mapping[SlotIndex, Place]
NO_PLACES: Final[Places] = MappingProxyType({})


def place_for(wanted: Slice, places: Places) -> Place:
    """What this slice's machine has: a slot may be larger than the slice that it carries."""
    place, vcpus = places.get(wanted.network.index, ANYWHERE), wanted.machine.vcpus
    return replace(place, pins=place.pins[:vcpus], queues=min(place.queues, vcpus))
