"""Interface between the agent's core and its host. `node_agent.wiring` selects real or simulated drivers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from events.values import AllocationId, Ipv4Address, NetworkMode, PciAddress, SlotIndex
from node_agent.host.host_resources import Use
from node_agent.host.pci import PciDevices
from node_agent.host.reachability import Findings
from node_agent.host.slices import Aspect, Difference, Slice, SliceNetwork, Step
from tasks.devices import DeviceReading, FoundDevice
from tasks.reasons import StreamCode

LeaseState = Literal["none", "offered", "bound", "expired", "foreign"]

STARTING: Final = frozenset({"machine.start", "machine.resume"})
"""Names of the steps that start or resume a slice's machine. They are planned only if the machine does not run."""


class Observed(Protocol):
    """Address and DHCP lease state of a slice, as the DHCP server's records show them (NOD-4: observed, never desired
    state).
    """

    @property
    def actual_ip(self) -> Ipv4Address | None: ...

    @property
    def lease_state(self) -> LeaseState: ...


@dataclass(frozen=True, slots=True)
class Answered:
    """Result of a readiness probe that received the expected banner."""

    banner: str


@dataclass(frozen=True, slots=True)
class NotYet:
    """Result of a readiness probe that failed, with the reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Prerequisite:
    """State of one prerequisite of a node, such as its bridge. `detail` describes it, or the error of reading it."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class ObservedMachine:
    """State of a slot's machine as the hypervisor reports it. Sizes are None for a foreign machine."""

    state: Literal["running", "paused", "stopped"]
    vcpus: int | None
    memory_mib: int | None


class ConsoleRefused(Exception):
    """A console of a machine cannot be opened; `code` is one of `tasks.reasons.StreamCode`."""

    def __init__(self, code: StreamCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Console(Protocol):
    """An open console of a machine: its serial port, its display, of which the bytes are those of the RFB protocol
    (RFC 6143), or a connection to its SSH port. One thread may read and another may write at the same time.
    """

    def read(self) -> bytes:
        """Wait for output and return it; empty when the console has ended or was closed."""
        ...

    def write(self, data: bytes) -> None:
        """Send input to the machine; do nothing if the console has ended."""
        ...

    def close(self) -> None:
        """End the console, and a `read` that waits in another thread. May be called repeatedly."""
        ...


class Probe(Protocol):
    """A single probe with a timeout. It succeeds if `address` sends a line that starts with `banner` on `port`."""

    def __call__(self, address: Ipv4Address, port: int, banner: str) -> Answered | NotYet: ...


class Reachability(Protocol):
    """Continuous probes of the network paths to ready slices. Thread-safe."""

    def watch(self, desired: Slice, port: int) -> None:
        """Start probing this slice, which passed its readiness check at `port`.

        The caller must hold the slot's work lock.
        """
        ...

    def leave(self, slot: SlotIndex) -> None:
        """Stop probing the slot's slice: no probe is sent to the slice after this method has returned."""
        ...

    def findings(self, desired: Slice, port: int) -> Findings:
        """Return the results of the newest probes of a slice, without sending a probe."""
        ...


class Gateway(Protocol):
    """Interface to the network of the node itself, on which all slices depend."""

    def to_apply(self) -> tuple[Step, ...]:
        """Return the steps that set up the node's network for slices; empty if it is set up.

        Raises `HostUnreadable`.
        """
        ...

    def lost(self) -> tuple[Difference, ...]:
        """Return the drift of the node's network that the agent cannot repair, including interference by other
        programs.

        Raises `HostUnreadable`.
        """
        ...

    def mirrored(self) -> Mapping[SlotIndex, Difference]:
        """Return, by slot index, the drift about foreign packet filter rules that copy or redirect frames to the slot's
        link, or from the slot's link to the link of another slot.

        Raises `HostUnreadable`.
        """
        ...

    def missing(self) -> tuple[str, ...]:
        """Describe the programs and packages that must be installed before the agent can configure the host."""
        ...

    def unsupported_modes(self) -> Mapping[NetworkMode, str]:
        """Return the network modes that slices on the host cannot have, each with what the host lacks for it.

        Raises `HostUnreadable`.
        """
        ...

    def prerequisites(self) -> tuple[Prerequisite, ...]:
        """Return the state of each prerequisite of the node's network; an unreadable prerequisite counts as missing."""
        ...


@dataclass(frozen=True, slots=True)
class Host:
    """Access to one host. `aspects` are in the order in which they create a slice; removal uses the reverse order."""

    aspects: tuple[Aspect, ...]
    gateway: Gateway
    observe_address: Callable[[SliceNetwork], Observed]
    probe: Probe
    reachability: Reachability
    images: Callable[[], tuple[str, ...]]
    devices: Callable[[], tuple[Prerequisite, ...]]
    """Return the state of the network links and PCI functions that the node's settings can name. A device that the
    settings do not name is not required."""
    absent_devices: Callable[[], tuple[Difference, ...]]
    """Return the drift of network links in the node's settings that do not exist. Raises `HostUnreadable`."""
    pci_devices: Callable[[], PciDevices]
    """Return the host's PCI functions; none if the settings give no slot a PCI function. Raises `HostUnreadable`."""
    describe_devices: Callable[[PciDevices], Mapping[tuple[Use, PciAddress], FoundDevice]]
    """Return the descriptions of the PCI functions in the slots' settings, by use and address."""
    read_device_health: Callable[[SlotIndex], tuple[DeviceReading, ...]]
    """Return a health reading of each PCI function in the settings of this slot."""
    check_machines: Callable[[], None]
    """Raise `HostUnreadable` if the hypervisor does not answer."""
    inspect_machine: Callable[[SliceNetwork], ObservedMachine | None]
    """Return the state of the slot's machine, or None if it has none. Raises `HostUnreadable`."""
    serial_log: Callable[[SliceNetwork, AllocationId, int], tuple[bytes, int] | None]
    """Return the last bytes of the serial output of a slot's machine, at most the given number, and the size of the
    whole log; None if the slot has no machine of the allocation, and no log of a removed one is kept. Raises
    `HostUnreadable`."""
    delete_expired_logs: Callable[[], None]
    """Delete the logs of removed slices that have been kept for the maximum time. Raises `HostRefused`."""
    open_console: Callable[[SliceNetwork, AllocationId], Console]
    """Open the serial console of a slot's running machine of the allocation. Raises `ConsoleRefused`,
    `HostUnreadable`."""
    open_display: Callable[[SliceNetwork, AllocationId], Console]
    """Open the display of a slot's running machine of the allocation. It may be open several times. Raises
    `ConsoleRefused`, `HostUnreadable`."""
    open_ssh: Callable[[SliceNetwork, AllocationId], Console]
    """Open a connection to the SSH port of a slot's running machine of the allocation, at the address of the slot's
    network. Raises `ConsoleRefused`, `HostUnreadable`."""
    runs: Callable[[SliceNetwork], bool]
    """Return whether a machine or process of the slot runs. Raises `HostUnreadable`."""
    to_shut_down: Callable[[SliceNetwork], tuple[Step, ...]]
    """Return the steps that request the slot's guest to shut down; empty if none runs. Raises `HostUnreadable`."""
    start_reading: Callable[[], None]
    """Start slow reads of the host ahead of time, in the current snapshot, because a survey needs their results for
    every slot.
    """
    listen: Callable[[], None]
    """Start to watch the host. From then on, registered callbacks are called at once when the host may have changed."""
    close: Callable[[], None]
    """Stop watching and probing, and release all connections."""
