"""What the agent's core needs of the machine it runs on. Wiring fills it, with real drivers or simulated ones."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from events.values import Ipv4Address, SlotIndex
from node_agent.pci import PciDevices
from node_agent.reaching import Findings
from node_agent.slices import Aspect, Difference, Slice, SliceNetwork, Step

LeaseState = Literal["none", "offered", "bound", "expired", "foreign"]

STARTING: Final = frozenset({"machine.start", "machine.resume"})
"""Steps that are planned only while a slice's machine does not run."""


class Observed(Protocol):
    """What DHCP's evidence says of a slice's address (NOD-4: evidence, never intent)."""

    @property
    def actual_ip(self) -> Ipv4Address | None: ...

    @property
    def lease_state(self) -> LeaseState: ...


@dataclass(frozen=True, slots=True)
class Answered:
    """The readiness probe heard what it listened for."""

    banner: str


@dataclass(frozen=True, slots=True)
class NotYet:
    reason: str


@dataclass(frozen=True, slots=True)
class Prerequisite:
    """One thing that a host needs; `detail` names it, and says why where it could not be looked at."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class MachineSeen:
    """What the hypervisor knows of a slot's machine. Sizes are None for a machine that is none of ours."""

    state: Literal["running", "paused", "stopped"]
    vcpus: int | None
    memory_mib: int | None


class Probe(Protocol):
    """One bounded try: does `address` answer on `port` with a line that starts with `banner`?"""

    def __call__(self, address: Ipv4Address, port: int, banner: str) -> Answered | NotYet: ...


class Reachability(Protocol):
    """Whether slices that are ready can be reached. Thread-safe."""

    def watch(self, wanted: Slice, port: int) -> None:
        """Probe this slice, which was ready at this port, from now on. Only the owner of the slot's work calls it."""
        ...

    def leave(self, slot: SlotIndex) -> None:
        """Stop probing the slot's slice: nothing is sent to it after this has returned."""
        ...

    def findings(self, wanted: Slice, port: int) -> Findings:
        """Return the newest results from memory."""
        ...


class Gateway(Protocol):
    """What the node as a whole needs before it can carry a slice."""

    def to_apply(self) -> tuple[Step, ...]:
        """Raises `HostUnreadable`."""
        ...

    def lost(self) -> tuple[Difference, ...]:
        """What the node needs and no step can bring back, and what others do that is theirs to undo. Raises
        `HostUnreadable`."""
        ...

    def mirrored(self) -> Mapping[SlotIndex, Difference]:
        """The slots whose frames another program sends to another slice, or that receive another's. Raises
        `HostUnreadable`."""
        ...

    def missing(self) -> tuple[str, ...]:
        """What must be installed on the host before anything can be done there, in words."""
        ...

    def prerequisites(self) -> tuple[Prerequisite, ...]:
        """Everything that was looked at; what cannot be read is not there."""
        ...


@dataclass(frozen=True, slots=True)
class Host:
    """`aspects` stand in the order in which a slice is made; it is taken away in the opposite one."""

    aspects: tuple[Aspect, ...]
    gateway: Gateway
    observe_address: Callable[[SliceNetwork], Observed]
    probe: Probe
    reachability: Reachability
    images: Callable[[], tuple[str, ...]]
    devices: Callable[[], tuple[Prerequisite, ...]]
    """Devices that the settings name, or say that there are none of."""
    absent_devices: Callable[[], tuple[Difference, ...]]
    """Those of them that are not there. Raises `HostUnreadable`."""
    pci_devices: Callable[[], PciDevices]
    """The host's PCI functions, where a slot has any. Raises `HostUnreadable`."""
    check_machines: Callable[[], None]
    """Raises `HostUnreadable` when the hypervisor does not answer."""
    inspect_machine: Callable[[SliceNetwork], MachineSeen | None]
    """Raises `HostUnreadable`."""
    runs: Callable[[SliceNetwork], bool]
    """Whether anything runs that is the slot's. Raises `HostUnreadable`."""
    to_shut_down: Callable[[SliceNetwork], tuple[Step, ...]]
    """Steps that ask the slot's guest to shut down; empty when none runs. Raises `HostUnreadable`."""
    look_ahead: Callable[[], None]
    """Within a look, begin to read what is asked of every slot and takes long."""
    listen: Callable[[], None]
    """From now on, those who asked for it hear at once when something on the host may have changed."""
    close: Callable[[], None]
