"""Read the files that describe a PCI function, from sysfs and from the NVIDIA driver's part of procfs.

Only text is read here; `node_agent.host.device_facts` computes facts from it. A missing or unreadable file is left out:
many files exist for some functions only, and others can be read only while the link is up.

A read of an RDMA port's state is a command to the firmware of its card, which may hang. So the files of each function
are read within a deadline, and while a read of a function's files hangs, no other read of that function's files starts.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from events.values import InvalidValue, PciAddress, pci_address
from node_agent.drivers.deadlines import Call, DeadlineExceeded, Deadlines
from node_agent.host.device_facts import NVIDIA_FOLDER, PCI_FOLDER, FactsUnread, Files
from node_agent.host.device_health import CONFIG, HEALTH_FILES

READ_SECONDS: Final = 2.0
_MOST_HUNG: Final = 256
"""Maximum number of concurrent reads, one per PCI function, including reads that hang: more than the GPUs and network
functions of any host."""
_OWN_FILES: Final = ("vendor", "device", "class", "numa_node", "resource")
_OWN_LINKS: Final = ("iommu_group", "physfn")
_PORT_FILES: Final = (
    "infiniband/*/node_guid",
    *(f"infiniband/*/ports/*/{name}" for name in ("link_layer", "state", "phys_state", "rate")),
    *(f"net/*/{name}" for name in ("mtu", "address", "operstate", "speed")),
)
_CONFIG_BYTES: Final = 64
"""Size in bytes of the standard header in the configuration space of a PCI function."""
_LARGEST_FILE: Final = 16 * 1024


class HostDeviceFiles:
    """Implementation of `node_agent.aspects.devices.DeviceFiles` that reads the sysfs and the procfs mounted at the
    paths `sysfs` and `procfs`.
    """

    def __init__(self, sysfs: Path, procfs: Path, read_seconds: float = READ_SECONDS) -> None:
        self._sysfs, self._procfs, self._read_seconds = sysfs, procfs, read_seconds
        self._deadlines = Deadlines(max_concurrent=_MOST_HUNG)
        self._hung: dict[PciAddress, Call[Files]] = {}

    def read(self, addresses: Iterable[PciAddress]) -> Mapping[PciAddress, Files | FactsUnread]:
        return self._read(addresses, self._files)

    def read_health(self, addresses: Iterable[PciAddress]) -> Mapping[PciAddress, Files | FactsUnread]:
        return self._read(addresses, self._health_files)

    def _read(
        self, addresses: Iterable[PciAddress], files_of: Callable[[PciAddress], Files]
    ) -> Mapping[PciAddress, Files | FactsUnread]:
        # All reads start before the first is awaited, so that many functions of one hung card delay a survey only once.
        started = {address: self._started(address, files_of) for address in addresses}
        return {address: self._result(address, call) for address, call in started.items()}

    def _health_files(self, address: PciAddress) -> Files:
        folder, shown = self._sysfs / "bus" / "pci" / "devices" / address, f"{PCI_FOLDER}/{address}"
        found = dict(self._config(folder, f"{shown}/{CONFIG}"))
        for name in HEALTH_FILES:
            # The folder is a link, which `..` would not follow.
            found |= dict(_text(folder.resolve() / name, f"{shown}/{name}"))
        return found

    def _config(self, folder: Path, shown: str) -> Iterator[tuple[str, str]]:
        try:
            with (folder / CONFIG).open("rb") as file:
                yield shown, file.read(_CONFIG_BYTES).hex()
        except OSError:
            return

    def _started(
        self, address: PciAddress, files_of: Callable[[PciAddress], Files]
    ) -> Call[Files] | FactsUnread:
        if (hung := self._hung.get(address)) is not None:
            if not hung.outcome.done():
                return FactsUnread("an earlier read of the files of the PCI function has not returned")
            del self._hung[address]
        try:
            return self._deadlines.begin(self._read_seconds, lambda: files_of(address))
        except DeadlineExceeded as overdue:
            return FactsUnread(f"cannot read the files of the PCI function: {overdue}")

    def _result(self, address: PciAddress, call: Call[Files] | FactsUnread) -> Files | FactsUnread:
        if isinstance(call, FactsUnread):
            return call
        try:
            return call.result()
        except DeadlineExceeded as overdue:
            self._hung[address] = call
            return FactsUnread(f"cannot read the files of the PCI function: {overdue}")

    def _files(self, address: PciAddress) -> Files:
        return dict(self._found(address))

    def _found(self, address: PciAddress) -> Iterator[tuple[str, str]]:
        folder = self._sysfs / "bus" / "pci" / "devices" / address
        shown = f"{PCI_FOLDER}/{address}"
        if (path := self._real_path(folder)) is not None:
            yield shown, path
        for name in _OWN_FILES:
            yield from _text(folder / name, f"{shown}/{name}")
        for name in _OWN_LINKS:
            if (target := _link_target(folder / name)) is not None:
                yield f"{shown}/{name}", target
        yield from self._port_files(address)
        if (parent := _parent(folder)) is not None:
            yield from self._port_files(parent)
        information = self._procfs / "driver" / "nvidia" / "gpus" / address / "information"
        yield from _text(information, f"{NVIDIA_FOLDER}/{address}/information")

    def _port_files(self, function: PciAddress) -> Iterator[tuple[str, str]]:
        """Yield path and text of each file about the RDMA devices and network links of a PCI function."""
        folder = self._sysfs / "bus" / "pci" / "devices" / function
        for pattern in _PORT_FILES:
            for path in sorted(folder.glob(pattern)):
                yield from _text(path, f"{PCI_FOLDER}/{function}/{path.relative_to(folder)}")

    def _real_path(self, folder: Path) -> str | None:
        """Return the path below /sys/devices of a PCI function's folder, which contains the addresses of all bridges
        above the function; None if the folder does not exist.
        """
        try:
            return f"/sys/{folder.resolve(strict=True).relative_to(self._sysfs.resolve())}"
        except (OSError, ValueError):
            return None


def _parent(folder: Path) -> PciAddress | None:
    try:
        return pci_address(_link_target(folder / "physfn") or "")
    except InvalidValue:
        return None


def _link_target(path: Path) -> str | None:
    try:
        return path.readlink().name
    except OSError:
        return None


def _text(path: Path, shown: str) -> Iterator[tuple[str, str]]:
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST_FILE).decode(errors="replace").strip()
    except OSError:
        return
    if text:
        yield shown, text
