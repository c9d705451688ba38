"""The PCI bus of a simulated host, with the devices that the settings of its slots name."""

from collections.abc import Iterable
from typing import Final

from events.values import PciAddress
from node_agent.aspects.links import Representor
from node_agent.host.host_resources import HostDevice, Place
from node_agent.host.pci import Netdev, PciDevice, PciDevices
from node_agent.host.slices import HostRefused
from node_agent.lab.simulated.host import HeldRepresentor, SimulatedHost

_SWITCH: Final = PciAddress("0000:ff:00.0")
_LINKS: Final = 1000
"""Interface index of the first representor."""
_NUMBERS: Final[dict[str, tuple[int, int, int]]] = {
    "gpu": (0x10DE, 0x2330, 0x030200),
    "fabric": (0x15B3, 0x1021, 0x020700),
    "card": (0x15B3, 0x101E, 0x020000),
}


class SimulatedPci:
    """Simulated implementation of `node_agent.aspects.passthrough.PciBus`."""

    def __init__(self, host: SimulatedHost) -> None:
        self._host = host

    def devices(self) -> PciDevices:
        with self._host.look() as state:
            return PciDevices(state.pci)

    def reset(self, address: PciAddress) -> None:
        with self._host.change("machine.reset", address) as state:
            if not any(each.address == address and each.reset_methods for each in state.pci):
                raise HostRefused(f"cannot reset PCI device {address}: No such file or directory")


def add_pci_devices(host: SimulatedHost, places: Iterable[Place]) -> None:
    """Add the PCI devices that the slots' settings name to a simulated host.

    Each device is in a separate IOMMU group and bound to vfio-pci.
    """
    places = tuple(places)
    named = [_device(each, place) for place in places for each in place.devices]
    cards = tuple(place.vf for place in places if place.vf is not None)
    with host.change() as state:
        present = {device.address for device in state.pci}
        state.pci += [device for device in named if device.address not in present]
        if cards:
            state.pci = [_switching(cards), *(each for each in state.pci if each.address != _SWITCH)]
        existing = {each.number for each in state.representors}
        new = (number for number, _ in enumerate(cards) if _LINKS + number not in existing)
        state.representors += [_representor(number) for number in new]


def _switching(functions: tuple[PciAddress, ...]) -> PciDevice:
    """Return a simulated network card that provides all of these PCI virtual functions."""
    ports = (
        Netdev(f"eth{number}", _LINKS + number, "switch", f"pf0vf{number}")
        for number, _ in enumerate(functions)
    )
    return PciDevice(
        _SWITCH,
        *_NUMBERS["fabric"],
        iommu_group=_SWITCH,
        driver="mlx5_core",
        virtual_functions=functions,
        netdevs=(Netdev("uplink1", _LINKS - 1, "switch", "p0"), *ports),
    )


def _representor(number: int) -> HeldRepresentor:
    return HeldRepresentor(_LINKS + number, Representor(f"eth{number}", up=False, mute=False))


def _device(given: HostDevice, place: Place) -> PciDevice:
    return PciDevice(
        given.address,
        *_NUMBERS[given.use],
        numa_node=None if place.nodeset is None else int(place.nodeset),
        iommu_group=given.address,
        driver="vfio-pci",
        physical_function=_SWITCH if given.use == "card" else None,
        reset_methods=("flr", "bus"),
    )
