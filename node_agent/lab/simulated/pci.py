"""The PCI bus of a simulated host, with the devices that the settings of its slots name."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from events.values import PciAddress
from node_agent.aspects.links import Representor
from node_agent.host.device_facts import PCI_FOLDER, Files
from node_agent.host.device_health import CONFIG
from node_agent.host.device_texts import prefetchable_bars
from node_agent.host.host_resources import HostDevice, Place
from node_agent.host.pci import Netdev, PciDevice, PciDevices
from node_agent.host.slices import HostRefused
from node_agent.lab.simulated.host import HeldRepresentor, SimulatedHost

_SWITCH: Final = PciAddress("0000:ff:00.0")
_LINKS: Final = 1000
"""Interface index of the first simulated representor."""
_NUMBERS: Final[dict[str, tuple[int, int, int]]] = {
    "gpu": (0x10DE, 0x2330, 0x030200),
    "fabric": (0x15B3, 0x1021, 0x020700),
    "card": (0x15B3, 0x101E, 0x020000),
}


_GPU_RESOURCE: Final = """\
0x0000220000000000 0x0000220000ffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000200000000000 0x0000201fffffffff 0x000000000014220c
"""
"""Content of the sysfs file `resource` of a simulated H100, a GPU with regions of 16 MiB and 128 GiB."""
_SIMULATED_PORT: Final = {"link_layer": "Ethernet", "state": "4: ACTIVE", "phys_state": "5: LinkUp"}


class SimulatedPci:
    """Simulated implementation of `PciBus` and `DeviceFiles` in `node_agent.aspects`."""

    def __init__(self, host: SimulatedHost) -> None:
        self._host = host

    def devices(self) -> PciDevices:
        with self._host.look() as state:
            return PciDevices(state.pci)

    def read(self, addresses: Iterable[PciAddress]) -> Mapping[PciAddress, Files]:
        devices = self.devices()
        found = {address: devices.find(address) for address in addresses}
        return {address: dict(_files(each)) for address, each in found.items() if each is not None}

    def read_health(self, addresses: Iterable[PciAddress]) -> Mapping[PciAddress, Files]:
        with self._host.look() as state:
            broken = set(state.broken_devices)
        return {
            address: dict(_health_files(address, responds=address not in broken)) for address in addresses
        }

    def bars(self, addresses: Iterable[PciAddress]) -> tuple[int, ...]:
        devices = self.devices()
        gpus = [each for each in map(devices.find, addresses) if each is not None and each.kind == "gpu"]
        return prefetchable_bars(_GPU_RESOURCE) * len(gpus)

    def bind(self, address: PciAddress) -> None:
        self._set_driver(address, "vfio-pci")

    def unbind(self, address: PciAddress) -> None:
        self._set_driver(address, None)

    def _set_driver(self, address: PciAddress, driver: str | None) -> None:
        with self._host.change("machine.bind", address) as state:
            state.pci = [
                replace(each, driver=driver) if each.address == address else each for each in state.pci
            ]

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


def _files(device: PciDevice) -> Iterator[tuple[str, str]]:
    folder = f"{PCI_FOLDER}/{device.address}"
    bus = device.address.rpartition(":")[0]
    yield folder, f"/sys/devices/pci{bus}/{bus}:1f.0/{device.address}"
    yield f"{folder}/class", f"0x{device.class_code:06x}"
    if device.kind == "gpu":
        yield f"{folder}/resource", _GPU_RESOURCE
    if device.physical_function is not None:
        port = f"{PCI_FOLDER}/{device.physical_function}/infiniband/mlx5_0/ports/1"
        yield from ((f"{port}/{name}", text) for name, text in _SIMULATED_PORT.items())


def _health_files(address: PciAddress, *, responds: bool) -> Iterator[tuple[str, str]]:
    folder = f"{PCI_FOLDER}/{address}"
    yield f"{folder}/{CONFIG}", ("de10" if responds else "ffff").ljust(128, "0" if responds else "f")
    for end in ("current", "max", "../max"):
        yield f"{folder}/{end}_link_speed", "32.0 GT/s PCIe"
        yield f"{folder}/{end}_link_width", "16"
    yield f"{folder}/resource", _GPU_RESOURCE
    yield f"{folder}/aer_dev_fatal", "TOTAL_ERR_FATAL 0"
    yield f"{folder}/aer_dev_nonfatal", "TOTAL_ERR_NONFATAL 0"


def _switching(functions: tuple[PciAddress, ...]) -> PciDevice:
    """Return a simulated network card that provides all of the given PCI virtual functions."""
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
