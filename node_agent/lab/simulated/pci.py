"""The PCI bus of a simulated host, and what a host has on it whose slots' settings name functions."""

from collections.abc import Iterable
from typing import Final

from events.values import PciAddress
from node_agent.lab.simulated.host import SimulatedHost
from node_agent.pci import PciDevice, PciDevices
from node_agent.places import Place
from node_agent.slices import HostRefused

_GPU: Final = (0x10DE, 0x2330, 0x030200)
_CARD: Final = (0x15B3, 0x1021, 0x020700)


class SimulatedPci:
    """`node_agent.passthrough.PciBus`."""

    def __init__(self, host: SimulatedHost) -> None:
        self._host = host

    def devices(self) -> PciDevices:
        with self._host.look() as state:
            return PciDevices(state.pci)

    def reset(self, address: PciAddress) -> None:
        with self._host.change("machine.reset", address) as state:
            if not any(each.address == address and each.reset_methods for each in state.pci):
                raise HostRefused(f"reset PCI device {address}: No such file or directory")


def plug_in(host: SimulatedHost, places: Iterable[Place]) -> None:
    """Have the host have what the places name, each in an IOMMU group of its own, kept for guests."""
    with host.change() as state:
        there = {device.address for device in state.pci}
        named = (
            _device(each.address, _GPU if each.use == "gpu" else _CARD, place)
            for place in places
            for each in place.devices
        )
        state.pci += [device for device in named if device.address not in there]


def _device(address: PciAddress, numbers: tuple[int, int, int], place: Place) -> PciDevice:
    vendor, device, class_code = numbers
    return PciDevice(
        address,
        vendor,
        device,
        class_code,
        numa_node=None if place.nodeset is None else int(place.nodeset),
        iommu_group=address,
        driver="vfio-pci",
        reset_methods=("flr", "bus"),
    )
