"""A host of five things a slot, for tests of the road itself: each aspect is one thing, there or not.

Tests make aspects unreadable, steps refused or slow, the guest silent, and count what was really done.
"""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from events.values import IngressId, Ipv4Address, SlotIndex
from node_agent.host import Answered, Host, MachineSeen, NotYet, Prerequisite
from node_agent.leases import LeaseState, ObservedAddress
from node_agent.looks import look
from node_agent.pci import PciDevice, PciDevices
from node_agent.reaching import Findings
from node_agent.slices import Difference, HostRefused, HostUnreadable, Slice, SliceNetwork, Step
from tasks.orders import Mapping
from tasks.workflows import StepName

STEPS: dict[str, tuple[StepName, StepName]] = {
    "link": ("link.add_tap", "link.delete"),
    "lease": ("lease.reserve", "lease.withdraw"),
    "port": ("port.add", "port.delete"),
    "translation": ("translation.set_rules", "translation.delete_rules"),
    "machine": ("machine.start", "machine.destroy"),
}
TAKING: Final = (
    "translation.delete_rules",
    "machine.destroy",
    "port.delete",
    "lease.withdraw",
    "link.delete",
)
"""The steps in the order in which a slice is taken away: it is closed first."""
NO_PORT: Final = Difference("port.absent", "a port", "none")
"""What is told where the port is not there; of the other things nothing is."""


@dataclass
class Toy:
    there: dict[tuple[str, int], str] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)
    unreadable: set[str] = field(default_factory=set)
    sticky: set[str] = field(default_factory=set)
    missing: tuple[str, ...] = ()
    images: tuple[str, ...] = ("lab-guest",)
    pci: tuple[PciDevice, ...] = ()
    machine: MachineSeen | None = None
    lease: LeaseState = "bound"
    address: Ipv4Address | None = None
    silent: bool = False
    undone: set[IngressId] = field(default_factory=set)
    """Ways in whose rules somebody takes away as soon as they are made."""
    strange: str = ""
    """What leads to the slice and nobody ordered; nobody gets rid of it."""
    deaf: bool = False
    """The guest does not shut down when it is asked to."""
    paused: bool = False
    """It cannot even be asked."""
    watched: dict[SlotIndex, Slice] = field(default_factory=dict)
    """Slices whose reachability is probed."""
    findings: Findings = field(default_factory=lambda: {None: None})
    slow: dict[str, threading.Event] = field(default_factory=dict)
    begun: threading.Event = field(default_factory=threading.Event)
    hangs_until: threading.Event | None = None
    look_hangs_until: threading.Event | None = None
    hangs: threading.Event = field(default_factory=threading.Event)
    then: Callable[[], object] = lambda: None
    """What happens between two looks."""
    ahead: list[int] = field(default_factory=list)
    """How often each that looked ahead had to read what it asked twice: once, within a look."""

    def counts(self) -> Counter[str]:
        return Counter(self.done)

    def kinds(self, index: int = 0) -> set[str]:
        return {kind for kind, slot in self.there if slot == index}

    def host(self) -> Host:
        return Host(
            aspects=tuple(ToyAspect(name, self) for name in STEPS),
            gateway=ToyGateway(self),
            observe_address=self.observe,
            probe=self.probe,
            reachability=ToyReachability(self),
            images=lambda: self.images,
            devices=lambda: (),
            absent_devices=lambda: (),
            pci_devices=self.pci_devices,
            check_machines=lambda: None,
            inspect_machine=self.inspect,
            runs=self.runs,
            to_shut_down=self.to_shut_down,
            look_ahead=self.look_ahead,
            listen=lambda: None,
            close=lambda: None,
        )

    def look_ahead(self) -> None:
        reads = list[int]()
        for _ in range(2):
            look(("toy", "ahead"), lambda: reads.append(1))
        self.ahead.append(len(reads))
        self.then()

    def pci_devices(self) -> PciDevices:
        if "pci" in self.unreadable:
            raise HostUnreadable("PCI devices: Input/output error")
        return PciDevices(self.pci)

    def inspect(self, network: SliceNetwork) -> MachineSeen | None:
        if self.machine is not None or ("machine", network.index) not in self.there:
            return self.machine
        return MachineSeen("running", 1, 96)

    def runs(self, network: SliceNetwork) -> bool:
        return ("machine", int(network.index)) in self.there

    def to_shut_down(self, network: SliceNetwork) -> tuple[Step, ...]:
        key = ("machine", int(network.index))
        if key not in self.there or self.paused:
            return ()

        def ask() -> None:
            self.do("machine.shut_down")
            if not self.deaf:
                del self.there[key]

        return (Step("machine.shut_down", ask),)

    def observe(self, network: SliceNetwork) -> ObservedAddress:
        if ("machine", network.index) not in self.there:
            return ObservedAddress(None, "none")
        return ObservedAddress(self.address or network.ip, self.lease)

    def probe(self, address: Ipv4Address, port: int, banner: str) -> Answered | NotYet:
        return NotYet("connection refused") if self.silent else Answered(f"{banner}2.0-toy")

    def do(self, step: str) -> None:
        self.begun.set()
        if step in self.slow:
            assert self.slow[step].wait(10)
        if step in self.refused:
            raise HostRefused(f"no {step} today")
        self.done.append(step)


@dataclass
class ToyReachability:
    toy: Toy

    def watch(self, wanted: Slice, port: int) -> None:
        self.toy.watched[wanted.network.index] = wanted

    def leave(self, slot: SlotIndex) -> None:
        self.toy.watched.pop(slot, None)

    def findings(self, wanted: Slice, port: int) -> Findings:
        return self.toy.findings if wanted.network.index in self.toy.watched else {}


@dataclass
class ToyAspect:
    name: str
    toy: Toy

    def to_apply(self, wanted: Slice) -> tuple[Step, ...]:
        if self.name != "translation":
            inside = replace(wanted, ingress=(), ways_changed=False)
            return self._to_make(wanted.network, wanted.network if self.name == "lease" else inside)
        steps = self._to_make(wanted.network, replace(wanted, ways_changed=False))
        maps = (self._to_map(way) for way in wanted.ingress if way.ingress_id in self.toy.undone)
        return (*self._to_unmap(), *steps, *maps)

    def to_stop(self, stopped: SliceNetwork) -> tuple[Step, ...]:
        return self._to_make(stopped, stopped) if self.name == "lease" else self.to_remove(stopped)

    def still_on(self, stopped: SliceNetwork) -> tuple[str, ...]:
        return () if self.name == "lease" else self.remains(stopped)

    def to_remove(self, gone: SliceNetwork) -> tuple[Step, ...]:
        self._read()
        if (self.name, int(gone.index)) not in self.toy.there:
            return ()

        def take() -> None:
            self.toy.do(STEPS[self.name][1])
            if self.name not in self.toy.sticky:
                del self.toy.there[self.name, int(gone.index)]

        return (Step(STEPS[self.name][1], take),)

    def remains(self, gone: SliceNetwork) -> tuple[str, ...]:
        self._read()
        return (f"{self.name} of {gone.tap}",) if (self.name, int(gone.index)) in self.toy.there else ()

    def _to_make(self, network: SliceNetwork, wanted: Slice | SliceNetwork) -> tuple[Step, ...]:
        self._read()
        key, content = (self.name, int(network.index)), repr(wanted)
        if self.toy.there.get(key) == content:
            return ()

        def make() -> None:
            self.toy.do(STEPS[self.name][0])
            self.toy.there[key] = content

        return (Step(STEPS[self.name][0], make, NO_PORT if self.name == "port" else None),)

    def _to_unmap(self) -> tuple[Step, ...]:
        if not self.toy.strange:
            return ()
        differs = Difference("mapping.foreign", "nothing else", self.toy.strange)
        return (Step("translation.unmap", lambda: self.toy.do("translation.unmap"), differs),)

    def _to_map(self, way: Mapping) -> Step:
        differs = Difference("mapping.changed", "its rules", "none", way.ingress_id)
        return Step("translation.map", lambda: self.toy.do("translation.map"), differs)

    def _read(self) -> None:
        if self.name in self.toy.unreadable:
            raise HostUnreadable(f"{self.name} does not answer")


@dataclass
class ToyGateway:
    toy: Toy

    def to_apply(self) -> tuple[Step, ...]:
        if self.toy.look_hangs_until is not None:
            self.toy.hangs.set()
            assert self.toy.look_hangs_until.wait(30)
        return ()

    def mirrored(self) -> dict[SlotIndex, Difference]:
        return {}

    def lost(self) -> tuple[Difference, ...]:
        return ()

    def missing(self) -> tuple[str, ...]:
        if self.toy.hangs_until is not None:
            self.toy.hangs.set()
            assert self.toy.hangs_until.wait(30)
        return self.toy.missing

    def prerequisites(self) -> tuple[Prerequisite, ...]:
        return tuple(Prerequisite("toy", ok=False, detail=words) for words in self.toy.missing)
